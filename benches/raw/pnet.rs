//! The same with pnet, whose sockets block.

use std::os::fd::IntoRawFd;

use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender, linux};
use socket2::{Domain, Protocol, Socket, Type};
use tests::veth::Side;

use benches::Sample;
use benches::traffic::Result;

use crate::{Meter, QUEUE, TYPE};

type Both = (Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>);

/// Its channel, with a queue as long as the others' and its defaults otherwise.
fn channel(side: Side) -> Result<Both> {
    let interfaces = pnet_datalink::interfaces();
    let interface = interfaces.iter().find(|interface| interface.name == side.interface());
    let socket = Socket::new(Domain::PACKET, Type::RAW, None::<Protocol>)?;
    socket.set_recv_buffer_size(QUEUE)?;
    let config = linux::Config { socket_fd: Some(socket.into_raw_fd()), ..(&Config::default()).into() };
    match linux::channel(interface.ok_or("no interface")?, config)? {
        Channel::Ethernet(sender, receiver) => Ok((sender, receiver)),
        _ => Err("not a channel of Ethernet".into()),
    }
}

pub(crate) fn receive(side: Side, count: u64) -> Result<Sample> {
    let (_, mut receiver) = channel(side)?;
    let meter = Meter::start();
    for _ in 0..count {
        receiver.next()?;
    }
    Ok(meter.stop(count))
}

pub(crate) fn send(side: Side, bytes: usize, count: u64) -> Result<Sample> {
    let (mut sender, _) = channel(side)?;
    let frame = [&side.other().mac()[..], &side.mac(), &TYPE.0.to_be_bytes(), &vec![0; bytes]].concat();
    let meter = Meter::start();
    for _ in 0..count {
        sender.send_to(&frame, None).ok_or("no room for the frame")??;
    }
    Ok(meter.stop(count))
}
