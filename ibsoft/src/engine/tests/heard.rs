//! When the peer was heard.

use super::script::Dut;

#[test]
fn whatever_the_peer_sends_is_a_sign_of_life() {
    let mut dut = Dut::new().receives(1, 64);
    assert_eq!(dut.engine.last_heard(dut.qpn), None);
    dut.run(
        "send 1
         D > SEND_ONLY 5000 A=1 len=16
         wait 1ms",
    );
    assert_eq!(dut.engine.last_heard(dut.qpn), None, "what we send is none");
    for script in [
        "P > RNR 1 5000
         wait 0.001ms",
        "wait 1ms
         D > SEND_ONLY 5000 A=1 len=16
         P > ACK 5000
         D : send 1 SUCCESS",
        // Of no use, but from the peer.
        "wait 1ms
         P > ACK 4990",
        "wait 1ms
         P > SEND_ONLY 1000 A=0 len=16
         D : recv 0 SUCCESS len=16",
        "wait 1ms
         P > RDMA_WRITE_ONLY 1001 A=0 len=0",
    ] {
        let before = dut.engine.last_heard(dut.qpn);
        dut.run(script);
        let heard = dut.engine.last_heard(dut.qpn);
        assert!(heard > before && heard <= Some(dut.now), "{script}");
    }
    let heard = dut.engine.last_heard(dut.qpn);
    dut.run(
        "wait 1ms
         P > ACK 5000 pkey=0x1234
         count drop_pkey 1",
    );
    assert_eq!(dut.engine.last_heard(dut.qpn), heard, "somebody else's packet is none");
}
