//! Timing of cases side by side.

use std::fmt;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Options;

/// Something to time.
pub struct Case<'a> {
    name: String,
    sample: Box<dyn FnMut(Clock, u64) -> Sample + 'a>,
}

impl<'a> Case<'a> {
    /// `run` does the thing as often as it is told.
    pub fn new(name: impl Into<String>, mut run: impl FnMut(u64) + 'a) -> Self {
        let sample = move |clock: Clock, count| {
            let (start, cpu_start) = (clock.now(), read(ClockId::ProcessCPUTime));
            run(count);
            Sample::of(count, clock.now() - start, read(ClockId::ProcessCPUTime) - cpu_start)
        };
        Self { name: name.into(), sample: Box::new(sample) }
    }

    /// `sample` does the thing about as often as it is told, and has its own clocks, such as those of another process.
    pub fn measured(name: impl Into<String>, mut sample: impl FnMut(u64) -> Sample + 'a) -> Self {
        Self { name: name.into(), sample: Box::new(move |_, count| sample(count)) }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What time means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// What the calling thread spent on the CPU: for what runs in one thread and never waits. Other processes on the same
    /// cores spoil the caches, not the count.
    Cpu,
    /// The clock on the wall.
    Wall,
}

impl Clock {
    /// What it shows.
    pub fn now(self) -> Duration {
        read(match self {
            Self::Cpu => ClockId::ThreadCPUTime,
            Self::Wall => ClockId::Monotonic,
        })
    }
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How much is timed.
#[derive(Debug, Clone, Copy)]
pub struct Sampling {
    /// By which clock.
    pub clock: Clock,
    /// How long one sample takes about.
    pub length: Duration,
    /// How many samples each case gets.
    pub samples: usize,
    /// How often a case is done in a sample; by default as often as fits its length.
    pub count: Option<u64>,
}

impl Sampling {
    /// This much, unless the command line says otherwise.
    pub fn new(options: &Options, clock: Clock, length: Duration, samples: usize) -> Self {
        match (options.count, options.quick) {
            (Some(_), _) => Self { clock, length, samples: 1, count: options.count },
            (None, true) => Self { clock, length: length / 50, samples: 3, count: None },
            (None, false) => Self { clock, length, samples, count: None },
        }
    }
}

/// How long a case takes once, nanoseconds.
#[derive(Debug, Clone)]
pub struct Estimate {
    /// Name of the case.
    pub name: String,
    /// Half of the samples took longer.
    pub median: f64,
    /// A quarter of the samples took less, a quarter more.
    pub quartiles: (f64, f64),
    /// CPU time of the whole process, kernel included, median.
    pub cpu: f64,
}

impl Estimate {
    /// How often it goes in a second.
    pub fn per_second(&self) -> f64 {
        1e9 / self.median
    }

    /// The quartiles for a table.
    pub fn spread(&self) -> String {
        format!("{:.1} .. {:.1}", self.quartiles.0, self.quartiles.1)
    }
}

/// Times the cases in turn, sample by sample, so that whatever slows the machine down meets all of them.
pub fn side_by_side(sampling: Sampling, mut cases: Vec<Case<'_>>) -> Vec<Estimate> {
    let counts: Vec<u64> = cases.iter_mut().map(|case| calibrate(case, sampling)).collect();
    let mut samples = vec![Vec::with_capacity(sampling.samples); cases.len()];
    for _ in 0..sampling.samples {
        for ((case, &count), samples) in cases.iter_mut().zip(&counts).zip(&mut samples) {
            samples.push((case.sample)(sampling.clock, count));
        }
    }
    cases.into_iter().zip(samples).map(|(case, samples)| Estimate::new(case.name, &samples)).collect()
}

/// How often `case` goes into a sample. Warms it up too.
fn calibrate(case: &mut Case<'_>, sampling: Sampling) -> u64 {
    if let Some(count) = sampling.count {
        return count;
    }
    let mut count = 1;
    loop {
        let took = (case.sample)(sampling.clock, count).time * count as f64;
        let length = sampling.length.as_secs_f64() * 1e9;
        if took >= length / 2.0 {
            return ((count as f64 * length / took) as u64).max(1);
        }
        count *= 2;
    }
}

/// Nanoseconds for each of the things done.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    time: f64,
    cpu: f64,
}

impl Sample {
    /// So many things done in this time, which took this much time of the CPU.
    pub fn of(count: u64, time: Duration, cpu: Duration) -> Self {
        let each = |time: Duration| time.as_secs_f64() * 1e9 / count as f64;
        Self { time: each(time), cpu: each(cpu) }
    }
}

impl Estimate {
    fn new(name: String, samples: &[Sample]) -> Self {
        let sorted = |field: fn(&Sample) -> f64| {
            let mut values: Vec<f64> = samples.iter().map(field).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let at = |values: &[f64], part: f64| values[((values.len() - 1) as f64 * part).round() as usize];
        let (times, cpu) = (sorted(|sample| sample.time), sorted(|sample| sample.cpu));
        Self {
            name,
            median: at(&times, 0.5),
            quartiles: (at(&times, 0.25), at(&times, 0.75)),
            cpu: at(&cpu, 0.5),
        }
    }
}
