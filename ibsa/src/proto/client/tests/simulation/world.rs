//! The client, the SA, what is under way between them, and what must hold.

use std::fmt::Write;

use super::super::*;
use super::Outcomes;
use super::plan::Plan;
use super::sa::{Sa, content};

/// What happens at a time.
enum Happening {
    ToClient(Lid, Mad),
    ToSa(Lid, Mad),
    Ask,
    Cancel,
    Move,
    /// The notice with this number, for the n-th time.
    Report(u64, u32),
}

/// A request that has not ended.
struct Asked {
    number: u16,
    deadline: Instant,
}

pub(super) struct World {
    rng: ChaCha8Rng,
    plan: Plan,
    start: Instant,
    now: Instant,
    client: Client,
    sa: Sa,
    /// Where the SM is.
    home: Option<Lid>,
    coming: BTreeMap<(Instant, u64), Happening>,
    happened: u64,
    open: BTreeMap<RequestId, Asked>,
    asked: u16,
    /// Copies of each request that went out whole.
    sent: BTreeMap<u16, u32>,
    /// Notices that were acknowledged, and those that the client has told since the SM moved.
    acknowledged: BTreeSet<u64>,
    told: BTreeSet<u64>,
    outcomes: Outcomes,
    journal: String,
    loud: bool,
}

const METHODS: [Method; 5] = [Method::GET, Method::GET_TABLE, Method::GET_MULTI, Method::SET, Method::DELETE];

/// Copies of a notice, and how far they are apart (spec/sa.md 6.3).
const REPORTS: u32 = 3;
const REPORT_AGAIN: Duration = Duration::from_millis(200);

impl World {
    pub(super) fn new(seed: u64, loud: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (plan, config) = Plan::draw(seed, &mut rng);
        let now = Instant::now();
        let mut client = Client::new(config, rng.random());
        client.set_sa(now, Some(address(SA)), vec![PKey::DEFAULT]);
        let mut world = Self {
            rng,
            start: now,
            now,
            client,
            sa: Sa::new(),
            home: Some(SA),
            coming: BTreeMap::new(),
            happened: 0,
            open: BTreeMap::new(),
            asked: 0,
            sent: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            told: BTreeSet::new(),
            outcomes: Outcomes::new(),
            journal: String::new(),
            loud,
            plan,
        };
        world.say(|world| format!("{:?} {:?}", world.plan, world.client.config));
        for _ in 0..world.plan.requests {
            world.some_time(5000, Happening::Ask);
        }
        for _ in 0..world.plan.cancels * world.plan.requests / 100 {
            world.some_time(8000, Happening::Cancel);
        }
        for _ in 0..world.plan.moves {
            world.some_time(10_000, Happening::Move);
        }
        for number in 0..world.plan.reports {
            world.some_time(8000, Happening::Report(number.into(), 1));
        }
        world
    }

    /// What happened, and what came of requests.
    pub(super) fn run(mut self) -> (String, Outcomes) {
        let mut steps = 0;
        loop {
            self.settle();
            let next = self.coming.first_key_value().map(|((at, _), _)| *at);
            let Some(next) = [next, self.client.poll_timeout(), self.sa.next()].into_iter().flatten().min()
            else {
                break;
            };
            steps += 1;
            assert!(steps < 200_000, "it does not end");
            self.now = self.now.max(next);
            while let Some(entry) = self.coming.first_entry()
                && entry.key().0 <= self.now
            {
                let happening = entry.remove();
                self.happen(happening);
                self.settle();
            }
            self.sa.handle_timeout(self.now, &self.plan, &mut self.rng);
            self.client.handle_timeout(self.now);
        }
        self.end()
    }

    fn say(&mut self, what: impl FnOnce(&Self) -> String) {
        let at = self.now - self.start;
        let line = format!("{at:?} {}", what(self));
        if self.loud {
            eprintln!("{line}");
        }
        writeln!(self.journal, "{line}").unwrap();
    }

    fn count(&mut self, what: &'static str) {
        *self.outcomes.entry(what).or_default() += 1;
    }

    fn some_time(&mut self, ms: u32, happening: Happening) {
        let at = self.start + MS * self.rng.random_range(0..ms);
        self.put(at, happening);
    }

    fn put(&mut self, at: Instant, happening: Happening) {
        self.happened += 1;
        self.coming.insert((at, self.happened), happening);
    }

    /// Puts a MAD on the wire: it is lost, arrives, or arrives twice, each copy when it likes.
    fn carry(&mut self, from: Instant, happening: impl Fn() -> Happening) {
        let copies = match self.rng.random_range(0..100) {
            roll if roll < self.plan.loss => 0,
            roll if roll < self.plan.loss + self.plan.duplicates => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let at = from + self.plan.delay.mul_f64(self.rng.random_range(0.01..1.0));
            self.put(at, happening());
        }
    }

    /// All that the client and the SA have to say.
    fn settle(&mut self) {
        while let Some(out) = self.client.poll_transmit() {
            self.note(&out.mad);
            let to = out.to.av.dlid;
            self.carry(self.now, || Happening::ToSa(to, out.mad));
        }
        for (at, from, mad) in std::mem::take(&mut self.sa.outbox) {
            self.carry(at, || Happening::ToClient(from, mad));
        }
        while let Some(event) = self.client.poll_event() {
            self.hear(event);
        }
        assert_eq!(self.client.pending(), self.open.len());
        assert!(self.client.under_way <= self.client.config.window);
        assert_eq!(self.client.by_tid.len(), self.client.under_way as usize);
    }

    /// Counts copies of requests that are one MAD.
    fn note(&mut self, mad: &Mad) {
        let header = SaHeader::parse(mad).unwrap();
        if !header.rmpp.is_active() && !header.mad.method.is_response() {
            let number = u16::from_be_bytes([mad[SaHeader::LEN], mad[SaHeader::LEN + 1]]);
            *self.sent.entry(number).or_default() += 1;
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::ToClient(from, mad) => self.arrive(from, &mad),
            Happening::ToSa(at, mad) => {
                let header = SaHeader::parse(&mad).unwrap();
                if header.mad.attribute == AttributeId::NOTICE {
                    self.acknowledged.insert(header.mad.tid.0);
                } else {
                    self.sa.hear(self.now, at, &mad, &self.plan, &mut self.rng);
                }
            }
            Happening::Ask => self.ask(),
            Happening::Cancel => {
                let at = self.rng.random_range(0..self.open.len().max(1));
                if let Some(id) = self.open.keys().nth(at).copied() {
                    let asked = self.open.remove(&id).unwrap();
                    self.client.cancel(self.now, id);
                    self.count("cancelled");
                    self.say(|_| format!("{} cancelled", asked.number));
                }
            }
            Happening::Move => {
                let lid = Lid(self.rng.random_range(0..4));
                self.home = (lid != Lid::NONE).then_some(lid);
                let (now, home) = (self.now, self.home.map(address));
                self.client.set_sa(now, home, vec![PKey::DEFAULT]);
                self.told.clear();
                self.say(|_| format!("the SM is at {lid:?}"));
            }
            Happening::Report(number, copy) => self.report(number, copy),
        }
    }

    /// Whatever comes leaves a trace: an event, a segment that was taken, or a counter.
    fn arrive(&mut self, from: Lid, mad: &Mad) {
        let header = SaHeader::parse(mad).unwrap();
        let of_transfer = |client: &Client| {
            let one =
                client.by_tid.get(&(header.mad.tid.0 as u32)).and_then(|id| client.transactions.get(id));
            one.is_some_and(|one| matches!(one.state, State::Sending(_) | State::Receiving(_)))
        };
        let (before, was_of_transfer) = (self.client.stats(), of_transfer(&self.client));
        self.client.handle(self.now, &source(from), mad);
        let trace = was_of_transfer || of_transfer(&self.client) || self.client.stats() != before;
        assert!(trace, "no trace of {header:?}");
    }

    fn ask(&mut self) {
        self.asked += 1;
        let number = self.asked;
        let method = METHODS[self.rng.random_range(0..METHODS.len())];
        let len = if method == Method::GET_MULTI { self.rng.random_range(2..1000) } else { 108 };
        let mut data = vec![0; len];
        data[..2].copy_from_slice(&number.to_be_bytes());
        let longest = Duration::from_secs(60);
        let time = self.plan.patience
            + (longest - self.plan.patience.min(longest)).mul_f64(self.rng.random_range(0.0..1.0));
        let deadline = self.now + time;
        let attribute = AttributeId(if method == Method::GET_MULTI { 0x3a } else { 0x11 });
        let request = Request { method, attribute, data, deadline, ..node(Method::GET, self.now) };
        match self.client.request(self.now, request) {
            Ok(id) => {
                self.say(|_| format!("{number} asks, {method}, {len} bytes, {time:?}"));
                assert!(self.open.insert(id, Asked { number, deadline }).is_none(), "an ID again");
            }
            Err(QueryError::QueueFull { limit }) => {
                assert_eq!(self.client.pending(), limit);
                self.count("queue full");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn report(&mut self, number: u64, copy: u32) {
        let Some(home) = self.home.filter(|_| !self.acknowledged.contains(&number)) else { return };
        let tid = TransactionId(number);
        let header = MadHeader::new(MgmtClass::SA, 2, Method::REPORT, AttributeId::NOTICE, tid);
        let mad = whole(&SaHeader::new(header), &number.to_be_bytes());
        self.carry(self.now, || Happening::ToClient(home, mad));
        if copy < REPORTS {
            self.put(self.now + REPORT_AGAIN, Happening::Report(number, copy + 1));
        }
    }

    fn hear(&mut self, event: Event) {
        let Some(id) = event.request() else {
            let Event::Report { notice, .. } = event else { unreachable!() };
            let mut bytes = [0; 80];
            notice.write_to(&mut bytes);
            let number = u64::from_be_bytes(*bytes.first_chunk().unwrap());
            assert!(self.told.insert(number), "notice {number} twice");
            self.say(|_| format!("notice {number}"));
            return self.count("notice");
        };
        let asked = self.open.remove(&id).expect("a request that has not ended");
        let Asked { number, deadline } = asked;
        assert!(self.now <= deadline, "{number} outlives its deadline");
        let came = match event {
            Event::Answered { answer, .. } => self.judge(number, &answer),
            Event::Failed { error, .. } => {
                self.say(|_| format!("{number}: {error:?}"));
                self.name(number, &error)
            }
            Event::Report { .. } => unreachable!(),
        };
        let calm = self.plan.patience >= Duration::from_secs(60);
        assert!(
            !calm || came == "answered" || came.starts_with("table"),
            "{number} has no reason to fail: {came}"
        );
        self.count(came);
    }

    /// What is called whole is what the SA has.
    fn judge(&mut self, number: u16, answer: &Answer) -> &'static str {
        self.say(|_| format!("{number} answered, {} bytes", answer.data.len()));
        let method = answer.header.mad.method;
        let table = method == Method::GET_TABLE.response() || method == Method::GET_MULTI.response();
        let content = content(number, table);
        if method == Method::GET_MULTI.response() {
            self.count("several segments asked");
        } else {
            assert_eq!(answer.effort.sent, self.sent[&number], "{number}");
        }
        if !table || !answer.complete {
            assert_eq!(answer.complete, !table);
            let len = content.len().min(SaHeader::DATA_LEN);
            assert_eq!(answer.data[..len], content[..len], "{number}");
            assert_eq!(answer.is_empty_table(), content.is_empty());
            return if table { "table that was cut" } else { "answered" };
        }
        assert_eq!(answer.data, content, "{number}");
        if content.len() > SaHeader::DATA_LEN { "table of several segments" } else { "table" }
    }

    fn name(&self, number: u16, error: &QueryError) -> &'static str {
        match error {
            QueryError::Status(_) => "status",
            QueryError::Silent(effort) if effort.busy > 0 => "busy to the end",
            QueryError::Silent(effort) => {
                let sent = self.sent.get(&number).copied();
                assert!(sent.is_none_or(|sent| sent == effort.sent), "{number}: {sent:?} {effort:?}");
                "silent"
            }
            QueryError::NoSa => "no SA",
            QueryError::Redirect(RedirectFault::TooOften(_)) => "redirected too often",
            QueryError::Redirect(RedirectFault::Nowhere) => "redirected nowhere",
            QueryError::Redirect(RedirectFault::Partition(_)) => "redirected to another partition",
            QueryError::Transfer(RmppError::Aborted(_)) => "transfer aborted",
            QueryError::Transfer(RmppError::Stopped) => "transfer stopped",
            QueryError::Transfer(RmppError::Broken(_)) => "transfer broken",
            QueryError::Transfer(RmppError::TimedOut { .. }) => "transfer timed out",
            QueryError::Transfer(RmppError::Unacknowledged { .. }) => "request not acknowledged",
            error => panic!("{error}"),
        }
    }

    /// Nothing is left, and what was counted adds up.
    fn end(mut self) -> (String, Outcomes) {
        let Client {
            config, queue, transactions, by_tid, timers, finished, under_way, outbox, events, ..
        } = &self.client;
        assert!(queue.is_empty() && transactions.is_empty() && by_tid.is_empty() && timers.is_empty());
        assert!(outbox.is_empty() && events.is_empty() && *under_way == 0);
        assert!(
            finished.len() <= config.finished && finished.iter().all(|(_, receiver)| receiver.held() == 0)
        );
        let stats = self.client.stats();
        let of = |what: &str| self.outcomes.get(what).copied().unwrap_or_default();
        let answered: u64 =
            self.outcomes.iter().filter(|(what, _)| is_answer(what)).map(|(_, count)| count).sum();
        let accepted = u64::from(self.asked) - of("queue full");
        assert_eq!(
            (stats.answered, stats.refused_queue, stats.reports),
            (answered, of("queue full"), of("notice"))
        );
        assert_eq!(stats.answered + stats.failed + of("cancelled"), accepted);
        assert!(stats.requests <= accepted);
        *self.outcomes.entry("copy of a notice").or_default() += stats.reports_again;
        self.say(|_| format!("{stats:?}"));
        (self.journal, self.outcomes)
    }
}

fn is_answer(what: &str) -> bool {
    what == "answered" || what.starts_with("table")
}
