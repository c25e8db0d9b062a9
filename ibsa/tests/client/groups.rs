//! Groups: joined, made, left, counted, and joined again after a change of the SM.

use ibdev::DeviceEvent;
use ibsa::record::{Is, JoinState, McMemberRecord, Record};
use ibsa::{Group, QueryError, SaStatus};
use ibwire::mad::{MadStatus, Method};
use ibwire::{Gid, Lid, Mtu, QKey};

use crate::fake::{Fake, Mood};
use crate::{MS, SECOND, drop_after, pass, settle};

const JOIN: Method = Method::SET;
const LEAVE: Method = Method::DELETE;

fn group() -> Gid {
    "ff15:a01b::7".parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_group_is_made_with_all_fields_and_left() {
    let fake = Fake::new();
    let client = fake.client();
    let fields = Group::new(0x1ee7u32).p_key(0x1234u16).sl(3u8).traffic_class(4).flow_label(0x12345u32);
    let fields = fields.hop_limit(7).mtu(Is::Exactly(Mtu::B2048)).scope(5);
    let member = client.join(group()).or_create(fields).await.unwrap();
    let record = member.record();
    assert_eq!((member.mgid(), member.mlid(), record.q_key), (group(), Lid(0xc000), QKey(0x1ee7)));
    assert_eq!((record.sl.get(), record.flow_label.get(), record.hop_limit), (3, 0x12345, 7));
    let masks = fake.with(|w| w.log.iter().map(|seen| seen.mask).collect::<Vec<_>>());
    assert_eq!(masks, [0x10003, 0x10003 | 0xf0f4], "first as one that exists, then with all that was named");
    assert!(fake.with(|w| w.log.iter().all(|seen| seen.sl.get() == 5)), "the SM's service level");
    member.leave().await.unwrap();
    assert_eq!(fake.memberships(), [(JOIN, 1), (JOIN, 1), (LEAVE, 1)]);
    assert!(fake.with(|w| w.groups.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn sa_t63_a_group_that_exists_keeps_its_parameters() {
    let fake = Fake::new();
    fake.with(|w| {
        w.make_group(group());
        w.groups.get_mut(&group()).unwrap().q_key = QKey(5);
    });
    let client = fake.client();
    let member = client.join(group()).or_create(Group::new(6u32)).await.unwrap();
    assert_eq!((member.record().q_key, fake.memberships().len()), (QKey(5), 1));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_joined_is_refused_where_it_is_given() {
    let fake = Fake::new();
    let client = fake.client();
    let here = crate::fake::HERE;
    assert!(matches!(client.join(here).await, Err(QueryError::NoGroup(gid)) if gid == here));
    assert!(matches!(client.join(Gid::UNSPECIFIED).await, Err(QueryError::NoGroup(_))));
    let passive = client.join(group()).non_member().or_create(Group::new(1u32)).await;
    assert_eq!(passive.unwrap_err().to_string(), "a group is made by a full member, not as NON_MEMBER");
    let wrong = client.join(group()).or_create(Group::new(1u32).sl(16u8)).await;
    assert_eq!(wrong.unwrap_err().to_string(), "MCMemberRecord sl is 16, at most 15 is possible");
    assert!(fake.memberships().is_empty());
    // Only the SA knows that there is no such group.
    let absent = client.join(group()).await;
    assert!(matches!(absent, Err(QueryError::Status(SaStatus::INSUFFICIENT_COMPONENTS))), "{absent:?}");
    settle().await;
    assert_eq!(fake.memberships(), [(JOIN, 1)], "neither tried again nor left");
}

#[tokio::test(start_paused = true)]
async fn sa_t61_members_are_counted_each_way_of_its_own() {
    let fake = Fake::new();
    let client = fake.client();
    let first = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    let second = client.clone().join(group()).await.unwrap();
    let sender = client.join(group()).send_only().await.unwrap();
    assert_eq!(fake.memberships()[1..], [(JOIN, 1), (JOIN, 4)], "the second is no affair of the SA");
    assert_eq!(sender.record().join_state, JoinState::FULL_MEMBER | JoinState::SEND_ONLY_NON_MEMBER);
    first.leave().await.unwrap();
    assert_eq!(fake.memberships().len(), 3, "there is one more");
    drop(second);
    settle().await;
    assert_eq!(fake.memberships()[3..], [(LEAVE, 1)]);
    let both = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    drop((both, sender));
    settle().await;
    let left: Vec<_> = fake.memberships().into_iter().filter(|one| one.0 == LEAVE).collect();
    assert_eq!(left, [(LEAVE, 1), (LEAVE, 1), (LEAVE, 4)]);
}

/// Who leaves hears of it, though somebody else joins at the same moment: the port stays.
#[tokio::test(start_paused = true)]
async fn who_leaves_while_another_joins_has_left() {
    let fake = Fake::new();
    let client = fake.client();
    let first = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    let asked = fake.memberships().len();
    let both = async { tokio::join!(first.leave(), client.join(group())) };
    let (left, joined) = tokio::time::timeout(20 * SECOND, both).await.unwrap();
    left.unwrap();
    assert_eq!((joined.unwrap().mgid(), fake.memberships().len()), (group(), asked));
}

#[tokio::test(start_paused = true)]
async fn joins_of_many_at_once_are_one() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Slow(MS));
    let joins: Vec<_> =
        (0..100).map(|_| tokio::spawn(client.join(group()).or_create(Group::new(1u32)))).collect();
    let mut members = Vec::new();
    for join in joins {
        members.push(join.await.unwrap().unwrap());
    }
    assert_eq!(fake.memberships(), [(JOIN, 1), (JOIN, 1)], "once plain, once to make it");
    drop(members);
    pass(10 * MS).await;
    assert_eq!(fake.memberships()[2..], [(LEAVE, 1)]);
}

#[tokio::test(start_paused = true)]
async fn sa_t57_sa_t58_groups_are_joined_again_at_a_new_sm() {
    let fake = Fake::new();
    let client = fake.client();
    let mut member = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    let mut sender = client.join(group()).send_only().await.unwrap();
    let before = member.mlid();
    fake.new_sm(Lid(7));
    client.device_event(DeviceEvent::SmChange(1));
    let started = tokio::time::Instant::now();
    let record = member.changed().await.unwrap();
    assert!(started.elapsed() <= SECOND, "within a second by chance");
    assert_ne!(record.mlid, before);
    assert_eq!((member.mlid(), sender.changed().await.unwrap().mlid), (record.mlid, record.mlid));
    assert_eq!(fake.with(|w| w.groups[&group()].join_state.bits()), 5);
    assert!(!fake.memberships().iter().any(|one| one.0 == LEAVE), "the new one knows of nothing to leave");
    // Nothing more is told.
    assert!(tokio::time::timeout(100 * SECOND, member.changed()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn sa_t59_a_reregistration_before_the_port_is_active() {
    let fake = Fake::new();
    let client = fake.client();
    let mut member = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    fake.new_sm(Lid::NONE);
    client.device_event(DeviceEvent::ClientReregister(1));
    pass(5 * SECOND).await;
    fake.new_sm(Lid(3));
    client.device_event(DeviceEvent::PortUp(1));
    member.changed().await.unwrap();
    assert!(fake.with(|w| w.groups.contains_key(&group())));
}

#[tokio::test(start_paused = true)]
async fn sa_t60_an_mgid_of_the_sa_is_asked_for_anew() {
    let fake = Fake::new();
    let client = fake.client();
    let mut member = client.join(Gid::UNSPECIFIED).or_create(Group::new(1u32)).await.unwrap();
    let mgid = member.mgid();
    assert_eq!(mgid.0[..4], [0xff, 0x12, 0xa0, 0x1b]);
    // By its name it is the same group.
    let second = client.join(mgid).await.unwrap();
    assert_eq!(fake.memberships().len(), 1);
    fake.new_sm(Lid(7));
    client.device_event(DeviceEvent::SmChange(1));
    let record = member.changed().await.unwrap();
    assert_ne!(record.mgid, mgid);
    assert_eq!((member.mgid(), second.mgid()), (record.mgid, record.mgid));
    drop((member, second));
    settle().await;
    assert!(fake.with(|w| w.groups.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn sa_t65_a_sender_waits_a_little_for_a_member() {
    let fake = Fake::new();
    let client = fake.client();
    let alone = client.join(group()).send_only().await;
    assert!(matches!(alone, Err(QueryError::Status(SaStatus::INSUFFICIENT_COMPONENTS))));
    assert_eq!(fake.memberships(), [(JOIN, 4), (JOIN, 4), (JOIN, 4)]);
    let sender = tokio::spawn(client.join(group()).send_only());
    pass(MS).await;
    fake.with(|w| w.make_group(group()));
    drop(sender.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn sa_t66_a_group_that_cannot_be_joined_again_is_tried_further() {
    let fake = Fake::new();
    let client = fake.client();
    let mut member = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    fake.new_sm(Lid(7));
    fake.with(|w| w.mood = Mood::Refuses(MadStatus(0x0100)));
    client.device_event(DeviceEvent::SmChange(1));
    for longest in [1.0, 1.25, 2.5, 5.0, 10.0, 20.0, 20.0] {
        let started = tokio::time::Instant::now();
        let error = member.changed().await.unwrap_err();
        assert!(matches!(error, QueryError::Status(SaStatus::NO_RESOURCES)), "{error}");
        assert!(started.elapsed().as_secs_f64() <= longest, "{:?}", started.elapsed());
    }
    fake.with(|w| w.mood = Mood::Prompt);
    assert_eq!(member.changed().await.unwrap().mgid, group());
}

#[tokio::test(start_paused = true)]
async fn sa_t67_what_the_sa_has_forgotten_is_left() {
    let fake = Fake::new();
    let client = fake.client();
    let member = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    fake.with(|w| w.groups.clear());
    member.leave().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_join_dropped_at_any_moment_leaves() {
    for time in [MS, 500 * MS, 1500 * MS] {
        let fake = Fake::new();
        let client = fake.client();
        fake.with(|w| w.mood = Mood::Slow(SECOND));
        drop_after(time, client.join(group()).or_create(Group::new(1u32))).await;
        pass(4 * SECOND).await;
        assert!(fake.with(|w| w.groups.is_empty()), "after {time:?}");
        assert_eq!(fake.memberships().last(), Some(&(LEAVE, 1)));
    }
    // One whose name only the SA knows.
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    drop_after(MS, client.join(Gid::UNSPECIFIED).or_create(Group::new(1u32))).await;
    pass(4 * SECOND).await;
    assert_eq!((fake.memberships(), fake.with(|w| w.groups.len())), (vec![(JOIN, 1), (LEAVE, 1)], 0));
}

/// A join that nobody waits for any more is not waited for: the SA may have it nevertheless, so it is left.
#[tokio::test(start_paused = true)]
async fn a_join_given_up_for_another_is_left() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    drop_after(MS, client.join(group()).or_create(Group::new(1u32))).await;
    let sender = client.join(group()).send_only_full().or_create(Group::new(1u32)).await.unwrap();
    assert_eq!(fake.memberships(), [(JOIN, 1), (LEAVE, 1), (JOIN, 8), (JOIN, 8)]);
    assert_eq!(fake.with(|w| w.groups[&group()].join_state), JoinState::SEND_ONLY_FULL_MEMBER);
    drop(sender);
}

/// The answer of an SM that has gone says nothing about the next one.
#[tokio::test(start_paused = true)]
async fn sa_t57_an_answer_from_before_a_change_is_not_believed() {
    let fake = Fake::new();
    let client = fake.client();
    let mut member = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    fake.new_sm(Lid(7));
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    client.device_event(DeviceEvent::SmChange(1));
    pass(1100 * MS).await;
    assert!(fake.memberships().len() > 2, "it is being joined again");
    // And once more, while the answer is on its way.
    fake.new_sm(Lid(7));
    client.device_event(DeviceEvent::ClientReregister(1));
    member.changed().await.unwrap();
    assert!(fake.with(|w| w.groups.contains_key(&group())), "at the SM that is there now");
}

/// A group is another one's only if the SA says so.
#[tokio::test(start_paused = true)]
async fn the_answer_about_another_group_is_none() {
    let fake = Fake::new();
    let client = fake.client();
    let other: Gid = "ff15:a01b::8".parse().unwrap();
    fake.with(|w| {
        w.make_group(group());
        w.groups.get_mut(&group()).unwrap().mgid = other;
    });
    let error = client.join(group()).await.unwrap_err();
    assert!(matches!(error, QueryError::OtherGroup(gid) if gid == other), "{error}");
}

/// Not all ports of a subnet come at the same moment.
#[tokio::test(start_paused = true)]
async fn sa_t66_ports_join_again_each_at_a_time_of_its_own() {
    let mut times = std::collections::BTreeSet::new();
    let fake = Fake::new();
    let client = fake.client();
    let mut member = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    for _ in 0..8 {
        fake.new_sm(Lid(7));
        client.device_event(DeviceEvent::SmChange(1));
        let started = tokio::time::Instant::now();
        member.changed().await.unwrap();
        times.insert(started.elapsed().as_millis());
    }
    assert!(times.len() > 4, "{times:?}");
}

/// Only where there is no such group one is made: an SA that refuses for another reason is not asked for that.
#[tokio::test(start_paused = true)]
async fn a_group_is_not_made_for_any_refusal() {
    let fake = Fake::new();
    let client = fake.client();
    fake.with(|w| w.mood = Mood::Refuses(MadStatus(0x0700)));
    let denied = client.join(group()).or_create(Group::new(1u32)).await;
    assert!(matches!(denied, Err(QueryError::Status(SaStatus(MadStatus(0x0700))))), "{denied:?}");
    assert_eq!(fake.memberships(), [(JOIN, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_leave_goes_on() {
    let fake = Fake::new();
    let client = fake.client();
    let member = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    fake.with(|w| w.mood = Mood::Slow(SECOND));
    drop_after(MS, member.leave()).await;
    // Who joins meanwhile is in it afterwards.
    let again = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    assert!(fake.with(|w| w.groups.contains_key(&again.mgid())));
}

#[tokio::test(start_paused = true)]
async fn sa_t75_leaving_a_silent_sa_is_bounded() {
    let fake = Fake::new();
    let client = fake.client();
    let member = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    fake.with(|w| w.mood = Mood::Silent);
    let started = tokio::time::Instant::now();
    let error = member.leave().await.unwrap_err();
    assert!(matches!(error, QueryError::Silent(_)), "{error}");
    assert_eq!(started.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn members_hear_that_the_client_is_closed() {
    let fake = Fake::new();
    let client = fake.client();
    let mut member = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    client.close();
    assert!(matches!(member.changed().await, Err(QueryError::Closed)));
    assert!(matches!(client.join(group()).await, Err(QueryError::Closed)));
    assert!(matches!(member.leave().await, Ok(()) | Err(QueryError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn a_membership_keeps_the_client_open() {
    let fake = Fake::new();
    let client = fake.client();
    let mut member = client.join(group()).or_create(Group::new(1u32)).await.unwrap();
    drop(client);
    assert!(tokio::time::timeout(SECOND, member.changed()).await.is_err());
    drop(member);
    settle().await;
    assert_eq!(fake.count(LEAVE, McMemberRecord::ATTRIBUTE), 1, "left before the client ended");
}
