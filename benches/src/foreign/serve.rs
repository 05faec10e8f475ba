//! Our child's part: it starts the driver and hands on what the parent asks for.

use std::ffi::OsString;
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::wire::Driven;
use super::{Foreign, WARM_UP};
use crate::child::{Child, Measured};
use crate::wire::{DRIVE, Filled, Pipes, Request};
use crate::{machine, recorder};

/// Serves the child's workload with a driver.
pub(crate) fn serve<F: Foreign>(child: &mut Child) -> io::Result<()> {
    let warm_up = std::env::var_os(WARM_UP).unwrap_or_else(|| "0".into());
    let mut words = F::DRIVER.command()?;
    words.push(child.workload.name.into());
    words.push(child.keys.to_string().into());
    words.push(warm_up);
    let mut process = through_ourselves(&words)?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    machine::works_for_us(process.id());
    let mut pipes = Pipes::to(&mut process);
    child.driver = Some(process);
    let filled: Filled = pipes.hear()?;
    child.filled_elsewhere(&filled)?;
    let mut ask = |request: &Request| pipes.send(request).and_then(|()| pipes.hear::<Driven>());
    child.rounds(|request| match ask(request) {
        Ok(driven) => {
            recorder::fired_elsewhere(driven.fired);
            Measured::of(driven.figures, Duration::from_secs_f64(driven.seconds))
        }
        // Its reason is on stderr already; the parent sees that this child has ended.
        Err(error) => {
            complain!("benches: {}: {error}", F::DRIVER.name);
            std::process::exit(1);
        }
    })
}

/// The command that starts a driver by way of this program. A driver that is stopped cannot see
/// that its input has ended, so it has to end with its parent, and only the process itself can ask
/// for that.
fn through_ourselves(words: &[OsString]) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    if cfg!(target_os = "linux") {
        command = Command::new("/proc/self/exe");
    }
    command.arg(DRIVE).args(words);
    Ok(command)
}

/// Becomes a driver.
pub(crate) fn drive(words: &[String]) -> io::Result<()> {
    machine::end_with_the_parent();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    become_it(&mut command)
}

#[cfg(unix)]
fn become_it(command: &mut Command) -> io::Result<()> {
    use std::os::unix::process::CommandExt;
    Err(command.exec())
}

#[cfg(not(unix))]
fn become_it(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    std::process::exit(status.code().unwrap_or(1));
}
