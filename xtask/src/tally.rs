//! Counting test cases.

use std::fmt;
use std::ops::AddAssign;

/// Cases that passed, failed and were ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

impl Tally {
    /// The sum over the `test result: ok. 4 passed; 0 failed; 0 ignored; …` lines of a test run.
    pub(crate) fn read(output: &str) -> Self {
        let mut sum = Self::default();
        for line in output.lines() {
            // Not at the beginning of the line: a test may have printed something without an end of line.
            let Some((_, counts)) = line.split_once("test result: ") else { continue };
            let count = |word: &str| {
                let before = counts.split_once(word)?.0;
                before.rsplit([' ', ';']).next()?.parse::<u64>().ok()
            };
            sum += Self {
                passed: count(" passed").unwrap_or(0),
                failed: count(" failed").unwrap_or(0),
                ignored: count(" ignored").unwrap_or(0),
            };
        }
        sum
    }
}

/// How a floor ended.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// One check, not made of cases, and it held.
    Held,
    /// The check did not hold, or the floor could not run.
    Failed(String),
    /// Cases ran; the text says what else went wrong, if anything.
    Cases(Tally, Option<String>),
    /// The floor did not run, which is allowed here.
    LeftOut(String),
}

impl Verdict {
    pub(crate) fn of(result: Result<(), String>) -> Self {
        result.map_or_else(Self::Failed, |()| Self::Held)
    }

    /// What it adds to the sum. A floor that broke without a failing case counts as one failure.
    pub(crate) fn tally(&self) -> Tally {
        match self {
            Self::Held => Tally { passed: 1, ..Tally::default() },
            Self::Failed(_) => Tally { failed: 1, ..Tally::default() },
            Self::Cases(tally, Some(_)) => Tally { failed: tally.failed.max(1), ..*tally },
            Self::Cases(tally, None) => *tally,
            Self::LeftOut(_) => Tally::default(),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held => write!(f, "ok"),
            Self::Failed(reason) => write!(f, "FAILED: {reason}"),
            Self::LeftOut(reason) => write!(f, "left out: {reason}"),
            Self::Cases(tally, reason) => {
                write!(f, "{} passed, {} failed, {} ignored", tally.passed, tally.failed, tally.ignored)?;
                reason.as_ref().map_or(Ok(()), |reason| write!(f, "; FAILED: {reason}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_all_result_lines() {
        let output = "running 2 tests\ntest a ... ok\n\
            test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; 5 filtered out; finished in 0.01s\n\
            noise without an end of linetest result: ok. 30 passed; 0 failed; 0 ignored; 0 measured\n";
        assert_eq!(Tally::read(output), Tally { passed: 42, failed: 1, ignored: 2 });
    }

    #[test]
    fn a_run_that_broke_counts_as_a_failure_even_without_a_failing_case() {
        let tally = Tally { passed: 3, ..Tally::default() };
        assert_eq!(Verdict::Cases(tally, Some("signal".into())).tally().failed, 1);
        assert_eq!(Verdict::Failed("did not build".into()).tally().failed, 1);
    }
}
