//! The examples on raw datagrams, on a veth pair between two network namespaces. Only root makes namespaces: for others the
//! cases count as ignored; with CI=true they fail.

mod common;

use std::io::Write;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Program, Result, example};
use libtest_mimic::{Arguments, Failed, Trial};
use tests::veth::{self, Here, Net, Side, There};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let hindrance = veth::hindrance(&[]);
    let left_out = hindrance.is_some() && std::env::var_os("CI").is_none_or(|ci| ci != "true");
    if let Some(reason) = &hindrance {
        eprintln!("examples on real links: {reason}");
    }
    let said = |error: Box<dyn std::error::Error + Send + Sync>| Failed::from(error.to_string());
    let trials = [
        Trial::test("chat_between_three_processes", move || three_chat().map_err(said)),
        Trial::test("mld_hears_a_neighbour", move || a_neighbour_reports().map_err(said)),
    ];
    let trials = trials.map(|trial| trial.with_ignored_flag(left_out));
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

/// The example at one side of the link.
fn at(net: &Net, side: Side, name: &str) -> Result<Command> {
    let mut command = net.command(side, &example(name)?.get_program().to_string_lossy());
    command.arg(side.interface());
    Ok(command)
}

/// Waits until a line of a table of the side's network is so.
fn until(net: &Net, side: Side, table: &str, is_so: impl Fn(&[&str]) -> bool) -> Result {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let text = net.run(side, "cat", &[&format!("/proc/net/{table}")])?;
        if text.lines().any(|line| is_so(&line.split_whitespace().collect::<Vec<_>>())) {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("{table} stays {text}").into());
        }
        sleep(Duration::from_millis(5));
    }
}

/// One at this side, two at the other: who speaks is heard by all at the other end of the link.
fn three_chat() -> Result {
    let net = Net::new()?;
    let names = [(Here, "ann"), (There, "bob"), (There, "cy")];
    let mut programs = Vec::new();
    for (side, name) in names {
        programs.push(Program::start_with_input(at(&net, side, "chat")?.arg(name))?);
    }
    for (side, users) in [(Here, "1"), (There, "2")] {
        until(
            &net,
            side,
            "dev_mcast",
            |words| matches!(words, [_, name, count, _, "3333000088b5"] if *name == side.interface() && *count == users),
        )?;
    }
    for (speaker, (side, name)) in names.into_iter().enumerate() {
        writeln!(programs[speaker].1, "hello from {name}")?;
        for (hearer, (other, hears)) in names.into_iter().enumerate() {
            if other != side {
                assert_eq!(programs[hearer].0.line()?, format!("{hears} hears {name}: hello from {name}"));
            }
        }
    }
    for (program, input) in programs {
        drop(input);
        assert_eq!(program.end()?.well()?.stdout, "", "nobody hears himself");
    }
    Ok(())
}

/// The kernel at the other side reports the group that a program there joins.
fn a_neighbour_reports() -> Result {
    let net = Net::new()?;
    let mut listener = Program::start(&mut at(&net, Here, "mld")?)?;
    until(
        &net,
        Here,
        "igmp6",
        |words| matches!(words, [_, name, "ff020000000000000000000000000016", ..] if *name == Here.interface()),
    )?;
    let _neighbour = Program::start(&mut at(&net, There, "mld")?)?;
    while listener.line()? != format!("{} says it is in ff02::16", There.address()) {}
    Ok(())
}
