//! The connection over which two ends agree.

use std::fmt::Display;
use std::net::SocketAddr;
use std::str::FromStr;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::Result;

/// Lines to the other end and from it.
#[derive(Debug)]
pub struct Control {
    stream: BufReader<TcpStream>,
}

impl Control {
    /// Waits for the other end.
    ///
    /// # Errors
    /// The network's.
    pub async fn accept(listener: &TcpListener) -> Result<Self> {
        Self::over(listener.accept().await?.0)
    }

    /// Connects to the other end.
    ///
    /// # Errors
    /// The network's.
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        Self::over(TcpStream::connect(address).await?)
    }

    fn over(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Says one line.
    ///
    /// # Errors
    /// The network's.
    pub async fn say(&mut self, line: impl Display) -> Result {
        Ok(self.stream.write_all(format!("{line}\n").as_bytes()).await?)
    }

    /// The next line, `None` if the other end is gone.
    ///
    /// # Errors
    /// The network's.
    pub async fn hear(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        let len = self.stream.read_line(&mut line).await?;
        Ok((len > 0).then(|| line.trim_end().to_owned()))
    }

    /// Says a line and hears one.
    pub(super) async fn swap(&mut self, line: impl Display) -> Result<String> {
        self.say(line).await?;
        Ok(self.hear().await?.ok_or("the other end is gone")?)
    }
}

/// The words of a line.
pub(super) fn words<T: FromStr, const N: usize>(line: &str) -> Result<[T; N]>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let words: Vec<T> = line.split(' ').map(str::parse).collect::<std::result::Result<_, _>>()?;
    words.try_into().map_err(|_| "not as many words as expected".into())
}
