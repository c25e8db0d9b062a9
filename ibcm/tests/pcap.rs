//! The pcap file of a device that writes no packets itself: its MADs, as they passed.

mod common;

use std::fs;
use std::time::Duration;

use common::{Result, SID};
use ibcm::sim::Subnet;
use ibcm::{Connection, Hca, Listener, OpenError};
use ibwire::packet::{Bth, Deth, Lrh};
use pcap_file::pcap::PcapReader;

/// Of an ERF record.
const HEADER_LEN: usize = 16;
/// The LRH, and of the BTH all but the PSN.
const BEFORE_PSN: usize = Lrh::LEN + Bth::LEN - 3;
const CRCS_LEN: usize = 4 + 2;
const MAD_PACKET: usize = Lrh::LEN + Bth::LEN + Deth::LEN + 256 + CRCS_LEN;

fn packets(file: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut reader = PcapReader::new(file)?;
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        packets.push(packet?.data[HEADER_LEN..].to_vec());
    }
    Ok(packets)
}

#[tokio::test(start_paused = true)]
async fn mads_stand_in_it_as_they_passed() -> Result {
    let folder = std::env::temp_dir().join(format!("ibcm-pcap-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let (all, mads) = (folder.join("all.pcap"), folder.join("mads.pcap"));
    let net = Subnet::star(["client", "server"]).seed(9).await?;
    let client = Hca::open(net.device("client")).pcap(&mads).await?;
    let server = Hca::open(net.device("server")).await?;
    let listener = Listener::bind(SID).device(&server).await?;
    let path = client.path_to(server.gid()).service_id(SID).await?;
    let accept = async {
        let request = listener.accept().await?;
        tokio::time::sleep(Duration::from_secs(15)).await;
        Ok::<_, ibcm::Error>(request.accept().await?)
    };
    let connect = async { Ok(Connection::connect(path).deadline(Duration::from_secs(60)).await?) };
    let (active, passive) = tokio::try_join!(connect, accept)?;
    active.send_copy(&[7; 256]).await?;
    passive.recv().await?;
    active.disconnect().await;
    // It is complete at any time.
    let captured = packets(&fs::read(&mads)?)?;
    net.write_pcap(&all)?;
    let passed = packets(&fs::read(&all)?)?;
    let passed: Vec<_> = passed.into_iter().filter(|packet| packet.len() == MAD_PACKET).collect();
    assert!(captured.len() > 6, "{}", captured.len());
    assert_eq!(captured.len(), passed.len());
    for (number, (ours, theirs)) in captured.iter().zip(&passed).enumerate() {
        assert_eq!(ours[..BEFORE_PSN], theirs[..BEFORE_PSN]);
        assert_eq!(usize::from(ours[BEFORE_PSN + 2]), number);
        let behind = BEFORE_PSN + 3..MAD_PACKET - CRCS_LEN;
        assert_eq!(ours[behind.clone()], theirs[behind]);
    }
    assert_eq!(client.stats().get("mads_uncaptured"), Some(0));

    let nowhere = Hca::open(net.device("server")).pcap(folder.join("no/such/folder")).await;
    assert!(matches!(nowhere, Err(OpenError::Device { .. })), "{nowhere:?}");
    fs::remove_dir_all(folder)?;
    Ok(())
}
