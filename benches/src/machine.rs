//! What the figures depend on: the machine, the versions, the commit; and what it is doing now.

use std::collections::HashMap;
use std::ffi::OsString;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    cpu: String,
    pub(crate) cores: usize,
    memory_kb: Option<u64>,
    os: String,
}

impl Machine {
    pub(crate) fn here() -> Self {
        Machine {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: cores(),
            memory_kb: field("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split_whitespace().next()?.parse().ok()),
            os: match std::fs::read_to_string("/proc/sys/kernel/osrelease") {
                Ok(release) => format!("{} {}", std::env::consts::OS, release.trim()),
                Err(_) => std::env::consts::OS.to_owned(),
            },
        }
    }

    pub(crate) fn line(&self) -> String {
        let memory = self.memory_kb.map(|kb| format!(", {} GiB", kb >> 20));
        let memory = memory.unwrap_or_default();
        format!("{}, {} cores{memory}, {}", self.cpu, self.cores, self.os)
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(key, _)| key.trim() == name)?;
    Some(value.trim().to_owned())
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) version: String,
}

/// The compiler, and the packages that the figures depend on.
pub(crate) fn versions() -> Vec<Version> {
    let mut versions = vec![Version {
        name: "rustc".to_owned(),
        version: env!("BENCHES_RUSTC").to_owned(),
    }];
    let lock = include_str!("../../Cargo.lock");
    let value = |line: Option<&str>, key: &str| {
        let text = line?.strip_prefix(key)?.strip_prefix(" = \"")?;
        text.strip_suffix('"').map(str::to_owned)
    };
    for package in lock.split("[[package]]") {
        let mut lines = package.trim_start().lines();
        let name = value(lines.next(), "name");
        let version = value(lines.next(), "version");
        if let (Some(name), Some(version)) = (name, version)
            && PACKAGES.contains(&name.as_str())
        {
            versions.push(Version { name, version });
        }
    }
    versions
}

const PACKAGES: [&str; 7] = [
    "tourbillon",
    "ahash",
    "hierarchical_hash_wheel_timer",
    "moka",
    "tokio",
    "tokio-util",
    "rustc-hash",
];

/// The commit of the tree that the program lies in, with a mark if that tree has changes.
pub(crate) fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git")
            .args(["-C", env!("CARGO_MANIFEST_DIR")])
            .args(args)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"]);
    Some(match changes.is_some_and(|changes| !changes.is_empty()) {
        true => format!("{commit} with changes"),
        false => commit,
    })
}

/// Resident memory of this process.
pub(crate) fn resident_bytes() -> Option<u64> {
    // Only Linux has such a file. Pages of 4 KiB: everything that the README calls tested.
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

/// By how much that has grown.
pub(crate) fn grown_since(before: Option<u64>) -> Option<u64> {
    Some(resident_bytes()?.saturating_sub(before?))
}

/// What the threads of this process have used so far, but for the calling one: with one producer
/// that calls this, it is what the system's own threads do.
#[derive(Debug, Default)]
pub(crate) struct Used {
    cpu: Option<Duration>,
    /// By thread, since some may end and others begin.
    switches: Option<HashMap<OsString, u64>>,
}

impl Used {
    pub(crate) fn now() -> Self {
        Used {
            switches: switches_of_others(),
            cpu: cpu_of_others(),
        }
    }

    /// CPU time since then, to the nanosecond.
    pub(crate) fn cpu_since(&self) -> Option<Duration> {
        Some(cpu_of_others()?.saturating_sub(self.cpu?))
    }

    /// How often threads went to sleep since then. Those that have ended are not counted.
    pub(crate) fn switches_since(&self) -> Option<u64> {
        let before = self.switches.as_ref()?;
        let each = |(thread, now): (OsString, u64)| {
            now.saturating_sub(before.get(&thread).copied().unwrap_or(0))
        };
        Some(switches_of_others()?.into_iter().map(each).sum())
    }
}

#[cfg(target_os = "linux")]
fn cpu_of_others() -> Option<Duration> {
    use rustix::time::{ClockId, clock_gettime};
    let used = |clock| Duration::try_from(clock_gettime(clock)).ok();
    // The thread first: the other way round its time might be the greater one.
    let own = used(ClockId::ThreadCPUTime)?;
    Some(used(ClockId::ProcessCPUTime)?.saturating_sub(own))
}

#[cfg(not(target_os = "linux"))]
fn cpu_of_others() -> Option<Duration> {
    None
}

/// Stops a child with everything that it started, or lets it go on. Where that can't be done it
/// runs on.
#[cfg(target_os = "linux")]
pub(crate) fn pause(child: &Child, stop: bool) {
    use rustix::process::{Pid, Signal, kill_process_group};
    let signal = if stop { Signal::STOP } else { Signal::CONT };
    // Not waited for yet, so the number is its own, even if it has ended.
    let _ = kill_process_group(Pid::from_child(child), signal);
}

/// The processes that `command` starts are a group of their own, which can be stopped as one.
#[cfg(target_os = "linux")]
pub(crate) fn lead_a_group(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    command.process_group(0)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn lead_a_group(command: &mut Command) -> &mut Command {
    command
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn pause(_: &Child, _: bool) {}

/// Voluntary context switches of the other threads, by thread.
fn switches_of_others() -> Option<HashMap<OsString, u64>> {
    let own = std::fs::read_link("/proc/thread-self").ok()?;
    let own = own.file_name()?;
    let mut switches = HashMap::new();
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        let thread = thread.ok()?;
        if thread.file_name() == own {
            continue;
        }
        let status = thread.path().join("status");
        // None if it has just ended.
        if let Some(count) = field(status.to_str()?, "voluntary_ctxt_switches") {
            switches.insert(thread.file_name(), count.parse().ok()?);
        }
    }
    Some(switches)
}

/// A process that does the work of this one, so that it is not one of the others.
static WORKS_FOR_US: OnceLock<u32> = OnceLock::new();

/// Counts the process with this number as this one. There is one at most.
pub(crate) fn works_for_us(process: u32) {
    WORKS_FOR_US.get_or_init(|| process);
}

/// CPU time so far, in the kernel's hundredths of a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    at: Instant,
    everybody: u64,
    ourselves: u64,
}

impl Busy {
    pub(crate) fn now() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let columns = stat.lines().next()?.split_whitespace().skip(1).enumerate();
        // Idle and waiting for a disk are not busy; guests are counted as users already.
        let busy = columns.filter(|(column, _)| ![3, 4].contains(column) && *column < 8);
        let everybody = busy
            .filter_map(|(_, ticks)| ticks.parse::<u64>().ok())
            .sum();
        let mut ourselves = ticks_of("self")?;
        if let Some(process) = WORKS_FOR_US.get() {
            ourselves += ticks_of(&process.to_string())?;
        }
        Some(Busy {
            at: Instant::now(),
            everybody,
            ourselves,
        })
    }

    /// How many cores others have kept busy since then.
    pub(crate) fn others_since(before: Option<Busy>) -> Option<Others> {
        let (before, after) = (before?, Busy::now()?);
        let ourselves = (after.ourselves - before.ourselves) as f64;
        let ticks = (after.everybody - before.everybody) as f64 - ourselves;
        Some(Others {
            busy: (ticks / 100.0).max(0.0),
            seconds: (after.at - before.at).as_secs_f64(),
        })
    }
}

/// What a process has used of the CPU.
fn ticks_of(process: &str) -> Option<u64> {
    Some(Process::look(process)?.ticks)
}

/// What Linux says of a process. CPU times are in hundredths of a second.
pub(crate) struct Process {
    pub(crate) parent: u64,
    pub(crate) ticks: u64,
    pub(crate) ticks_of_ended_children: u64,
}

impl Process {
    /// The one with this number. `None` if it has ended.
    pub(crate) fn look(number: &str) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        // The name in parentheses may hold anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let field = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Process {
            parent: field(1)?,
            ticks: field(11)? + field(12)?,
            ticks_of_ended_children: field(13)? + field(14)?,
        })
    }
}

/// What others did in some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Others {
    /// Seconds of CPU time.
    busy: f64,
    seconds: f64,
}

impl Others {
    pub(crate) fn cores(self) -> f64 {
        self.busy / self.seconds.max(0.01)
    }

    /// Whether that disturbs a measurement: more than 0.15 cores, and more than what the kernel's
    /// hundredths of a second may be off at both ends.
    pub(crate) fn disturb(self) -> bool {
        self.busy > 0.15 * self.seconds + 0.03
    }
}

const LOOK: Duration = Duration::from_millis(100);

/// Waits until others leave the machine alone, for at most `limit` and a look. Returns how long it
/// waited beyond the look that is always needed.
pub(crate) fn wait_for_calm(limit: Duration) -> Duration {
    let mut waited = Duration::ZERO;
    loop {
        let before = Busy::now();
        thread::sleep(LOOK);
        let calm = Busy::others_since(before).is_none_or(|others| !others.disturb());
        if calm || waited >= limit {
            return waited;
        }
        waited += LOOK;
    }
}

/// The parent's end, however it comes, is the child's end too, also if it is stopped.
#[cfg(target_os = "linux")]
pub(crate) fn end_with_the_parent() {
    use rustix::process::{Signal, set_parent_process_death_signal};
    // Where it can't be set the end of the input has to do.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn end_with_the_parent() {}
