//! The example of a tested program does what its documentation says, each time.

mod common;

use common::{Program, Result, example};

#[test]
fn a_majority_decides_while_the_network_is_cut() -> Result {
    let expected = [
        "value 1, 0 cut off: written, registers [1, 1, 1]",
        "value 2, 1 cut off: written, registers [1, 2, 2]",
        "value 3, 2 cut off: refused, registers [1, 2, 3]",
        "value 4, 0 cut off: written, registers [4, 4, 4]",
    ];
    for _ in 0..2 {
        let ended = Program::start(&mut example("replicas")?)?.end()?.well()?;
        assert_eq!(ended.stdout.lines().collect::<Vec<_>>(), expected);
    }
    Ok(())
}
