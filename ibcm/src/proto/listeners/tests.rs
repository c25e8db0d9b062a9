use ibwire::RejReason;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::super::discriminator::Discriminator;
use super::*;

const SERVICE: ServiceId = ServiceId::new(1);
const NOTHING: PrivateData<92> = PrivateData::EMPTY;

fn listeners() -> Listeners {
    Listeners::new(Keyed::new(&mut ChaCha8Rng::from_seed([0; 32])))
}

impl Listeners {
    fn add(&mut self, listen: Listen) -> Result<ListenerId, ListenError> {
        self.insert(listen, &Config::default())
    }

    fn find_at(&self, service_id: ServiceId, port: u8, gid: Gid) -> Option<ListenerId> {
        self.find(&Wanted { service_id, port, gid, lid: Lid(1), private_data: &NOTHING })
    }

    fn find_for(&self, private_data: &PrivateData<92>) -> Option<ListenerId> {
        self.find(&Wanted { service_id: SERVICE, port: 1, gid: Gid([1; 16]), lid: Lid(1), private_data })
    }
}

#[test]
fn the_most_particular_listener_wins() {
    let mut listeners = listeners();
    let gid = Gid([1; 16]);
    let any = listeners.add(Listen::new(SERVICE)).unwrap();
    let by_gid = listeners.add(Listen { local_gid: Some(gid), ..Listen::new(SERVICE) }).unwrap();
    let by_port = listeners.add(Listen { port: Some(2), ..Listen::new(SERVICE) }).unwrap();
    assert_eq!(listeners.find_at(SERVICE, 2, gid), Some(by_gid));
    assert_eq!(listeners.find_at(SERVICE, 2, Gid([2; 16])), Some(by_port));
    assert_eq!(listeners.find_at(SERVICE, 1, Gid([2; 16])), Some(any));
    assert_eq!(listeners.find_at(ServiceId::new(2), 1, gid), None);
    assert_eq!(listeners.add(Listen::new(SERVICE)), Err(ListenError::AddrInUse));

    listeners.remove(any);
    listeners.remove(any);
    assert_eq!(listeners.find_at(SERVICE, 1, Gid([2; 16])), None);
    let again = listeners.add(Listen::new(SERVICE)).unwrap();
    assert_ne!(again, any);
    assert_eq!(listeners.pending(any), None);
    listeners.request_decided(any);
    assert_eq!(listeners.pending(again), Some(0));
}

#[test]
fn a_lid_comes_before_a_port_and_behind_a_gid() {
    let mut listeners = listeners();
    let with = |listeners: &mut Listeners, set: fn(&mut Listen)| {
        let mut listen = Listen::new(SERVICE);
        set(&mut listen);
        listeners.add(listen).unwrap()
    };
    let by_port = with(&mut listeners, |listen| listen.port = Some(1));
    let by_lid = with(&mut listeners, |listen| listen.local_lid = Some(Lid(7)));
    let by_gid = with(&mut listeners, |listen| listen.local_gid = Some(Gid([1; 16])));
    let find =
        |lid, gid| listeners.find(&Wanted { service_id: SERVICE, port: 1, gid, lid, private_data: &NOTHING });
    assert_eq!(find(Lid(7), Gid([1; 16])), Some(by_gid));
    assert_eq!(find(Lid(7), Gid([2; 16])), Some(by_lid));
    assert_eq!(find(Lid(8), Gid([2; 16])), Some(by_port));
}

#[test]
fn cm_t81_discriminators_tell_listeners_of_one_service_apart() {
    let mut listeners = listeners();
    let discriminated = |offset, pattern: &[u8]| Listen {
        discriminator: Some(Discriminator::new(offset, pattern).unwrap()),
        ..Listen::new(SERVICE)
    };
    let plain = listeners.add(Listen::new(SERVICE)).unwrap();
    let x = listeners.add(discriminated(4, b"X")).unwrap();
    let y = listeners.add(discriminated(4, b"Y")).unwrap();
    let long = listeners.add(discriminated(4, b"YZ")).unwrap();
    assert_eq!(listeners.add(discriminated(4, b"X")), Err(ListenError::AddrInUse));
    for (data, found) in [(b"...X ", plain), (b"....X", x), (b"....Y", y), (b"....Z", plain)] {
        assert_eq!(listeners.find_for(&PrivateData::from(data)), Some(found), "{data:?}");
    }
    assert_eq!(listeners.find_for(&PrivateData::from(b"....YZ")), Some(long));
    listeners.remove(plain);
    assert_eq!(listeners.find_for(&PrivateData::from(b"....Z")), None);
    listeners.remove(long);
    assert_eq!(listeners.find_for(&PrivateData::from(b"....YZ")), Some(y));
}

#[test]
fn the_mask_with_most_bits_wins() {
    let mut listeners = listeners();
    let masked = |id, mask| Listen { service_mask: mask, ..Listen::new(ServiceId::new(id)) };
    let exact = listeners.add(Listen::new(ServiceId::new(0x1234))).unwrap();
    let all = listeners.add(masked(0, 0)).unwrap();
    let narrow = listeners.add(masked(0x1200, 0xff00)).unwrap();
    let wide = listeners.add(masked(0x1000, 0xf000)).unwrap();
    let find = |listeners: &Listeners, id| listeners.find_at(ServiceId::new(id), 1, Gid([1; 16]));
    for (id, found) in [(0x1234, exact), (0x1235, narrow), (0xff_1235, narrow), (0x1335, wide), (0x2235, all)]
    {
        assert_eq!(find(&listeners, id), Some(found), "{id:#x}");
    }
    assert_eq!(listeners.add(masked(0x1200, 0xff00)), Err(ListenError::AddrInUse));
    let error = listeners.add(masked(0x1234, 0xff00)).unwrap_err();
    assert_eq!(error.to_string(), "service ID is 0x0000000000001234, it must be 0 where the service mask is");

    // A listener that the request does not fit leaves it to those of a wider mask.
    listeners.remove(exact);
    let by_port = Listen { port: Some(2), ..Listen::new(ServiceId::new(0x1234)) };
    listeners.add(by_port).unwrap();
    assert_eq!(find(&listeners, 0x1234), Some(narrow));
    listeners.remove(narrow);
    assert_eq!(find(&listeners, 0x1234), Some(wide));
    listeners.remove(all);
    assert_eq!((find(&listeners, 0x2235), listeners.masks.len()), (None, 2));
}

#[test]
fn patience_follows_the_turnaround() {
    let mut listeners = listeners();
    let mut patience = |turnaround| {
        let id = listeners.add(Listen { turnaround, ..Listen::new(SERVICE) }).unwrap();
        let patience = listeners.mra_terms(id).unwrap().clone();
        listeners.remove(id);
        patience
    };
    let second = Duration::from_secs(1);
    for (turnaround, code, after) in [
        (None, 20, second / 2),
        (Some(second / 2), 17, second / 2),
        (Some(second), 18, second / 2),
        (Some(2 * second), 19, Duration::ZERO),
        (Some(100 * second), 23, Duration::ZERO),
    ] {
        let patience = patience(turnaround);
        assert_eq!((patience.service_timeout.get(), patience.asked_after(second)), (code, after));
    }
    let nothing = Listen { turnaround: Some(Duration::ZERO), ..Listen::new(SERVICE) };
    let error = listeners.add(nothing).unwrap_err();
    assert_eq!(error.to_string(), "turnaround is 0ns, it must be more than zero");
}

#[test]
fn overflows_are_counted_until_the_listener_is_removed() {
    let mut listeners = listeners();
    let overflow = Overflow::Reject(RejReason::NO_RESOURCES);
    let id = listeners.add(Listen { backlog: 1, overflow, ..Listen::new(SERVICE) }).unwrap();
    assert!(!listeners.is_full(id));
    listeners.request_added(id);
    assert!(listeners.is_full(id));
    assert_eq!(listeners.overflow(id), overflow);
    listeners.shut();
    assert_eq!((listeners.find_at(SERVICE, 1, Gid([1; 16])), listeners.overflowed(id)), (None, Some(1)));
    listeners.remove(id);
    assert_eq!((listeners.overflow(id), listeners.overflowed(id)), (Overflow::Drop, None));
}

#[test]
fn what_no_listener_can_be() {
    let mut listeners = listeners();
    let refused = |listeners: &mut Listeners, set: fn(&mut Listen)| {
        let mut listen = Listen::new(SERVICE);
        set(&mut listen);
        listeners.add(listen).unwrap_err().to_string()
    };
    assert_eq!(refused(&mut listeners, |listen| listen.backlog = 0), "backlog is 0, at least 1 is needed");
    let no_transport = refused(&mut listeners, |listen| listen.transports = Transports::NONE);
    assert_eq!(no_transport, "transports is 0, at least 1 is needed");
    let multicast = refused(&mut listeners, |listen| listen.local_lid = Some(Lid(0xc000)));
    assert_eq!(multicast, "local LID is 0xc000, it must be the LID of a port");
}
