//! Those who do the work that is disturbed: processes of this program, and threads of it. Both are
//! told calls and say words, as lines of JSON or through channels.

use std::env;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::{Moment, now};

/// The first argument of a process that is a member; the second one is its order.
const MEMBER: &str = "member";

/// What comes from a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard<W> {
    /// It has said this.
    Word(W),
    /// It has ended; the reason, if it has told one.
    Gone(Option<String>),
}

/// One line of a process.
#[derive(Serialize, Deserialize)]
enum Line<W> {
    Says(W),
    Fails(String),
}

/// A process of this program. Dropped, it is killed, also while it is stopped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The process is told to leave by its end.
    calls: Option<ChildStdin>,
    killed: Option<Moment>,
}

impl Process {
    /// Starts this program again, as a member with this order.
    pub fn start(order: &impl Serialize) -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args([MEMBER, &serde_json::to_string(order)?]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // The interrupt key of a terminal is for the parent, which ends its members in order.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let calls = child.stdin.take();
        Ok(Process {
            child,
            calls,
            killed: None,
        })
    }

    /// Passes on what it says, and its end.
    pub fn listen<W: DeserializeOwned>(
        &mut self,
        mut hear: impl FnMut(Heard<W>) + Send + 'static,
    ) -> JoinHandle<()> {
        let words = self.child.stdout.take().map(BufReader::new);
        thread::spawn(move || {
            let lines = words.into_iter().flat_map(BufReader::lines);
            for line in lines.map_while(Result::ok) {
                // A line that was cut short by a kill is the last one.
                match serde_json::from_str(&line) {
                    Ok(Line::Says(word)) => hear(Heard::Word(word)),
                    Ok(Line::Fails(why)) => return hear(Heard::Gone(Some(why))),
                    Err(_) => break,
                }
            }
            hear(Heard::Gone(None));
        })
    }

    /// Tells it a call. One that has ended says so itself.
    pub fn tell(&mut self, call: &impl Serialize) {
        let mut line = serde_json::to_vec(call).expect("calls are plain data");
        line.push(b'\n');
        let _ = self.calls.as_mut().map(|calls| calls.write_all(&line));
    }

    /// Tells it to leave.
    pub fn leave(&mut self) {
        self.calls = None;
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, by SIGKILL, and waits for its end.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.killed = Some(now());
        Ok(())
    }

    /// When it was killed, if it was.
    pub fn killed(&self) -> Option<Moment> {
        self.killed
    }

    /// Stops it as a debugger would, or lets it go on.
    pub fn stop(&self, stop: bool) {
        #[cfg(unix)]
        {
            use rustix::process::{Pid, Signal, kill_process_group};
            let signal = if stop { Signal::STOP } else { Signal::CONT };
            // Not waited for yet, so the number is its own, even if it has ended.
            let _ = kill_process_group(Pid::from_child(&self.child), signal);
        }
        #[cfg(not(unix))]
        let _ = stop;
    }

    /// Stops it for at least this time, counted from when it stands still.
    pub fn pause(&self, time: Duration) {
        self.stop(true);
        let stat = format!("/proc/{}/stat", self.id());
        let runs = || {
            let stat = fs::read_to_string(&stat).ok();
            let state = stat.as_deref().and_then(|stat| stat.rsplit_once(") "));
            state.is_some_and(|(_, state)| !state.starts_with(['T', 'Z']))
        };
        while runs() {
            thread::yield_now();
        }
        let begun = Instant::now();
        while begun.elapsed() < time {
            thread::park_timeout(time);
        }
        self.stop(false);
    }

    /// How it has ended, if it has.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for its end.
    pub fn wait(&mut self, limit: Duration) -> io::Result<ExitStatus> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if begun.elapsed() > limit {
                return Err(io::Error::other("the process hangs"));
            }
            thread::park_timeout(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

enum Body<C> {
    Process(Process),
    Thread(Option<Sender<C>>),
}

/// A process or a thread. Nothing of a process outlives it; a thread is told to leave by its drop.
pub struct Member<C> {
    /// What it is called.
    pub name: String,
    body: Body<C>,
    ears: Option<JoinHandle<()>>,
}

impl<C> fmt::Debug for Member<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl<C: Serialize + Send + 'static> Member<C> {
    /// Starts a process, whose words come with this number.
    pub fn process<W: DeserializeOwned + Send + 'static>(
        number: usize,
        order: &impl Serialize,
        heard: Sender<(usize, Heard<W>)>,
    ) -> io::Result<Self> {
        let mut process = Process::start(order)?;
        let ears = process.listen(move |what| {
            let _ = heard.send((number, what));
        });
        let name = format!("process {}", process.id());
        Ok(Member {
            name,
            body: Body::Process(process),
            ears: Some(ears),
        })
    }

    /// Starts a thread that does the work of a process.
    pub fn thread<W: Send + 'static>(
        number: usize,
        heard: Sender<(usize, Heard<W>)>,
        work: impl FnOnce(&Receiver<C>, &dyn Fn(W)) -> io::Result<()> + Send + 'static,
    ) -> Self {
        let (tell, told) = channel();
        let ears = thread::spawn(move || {
            let say = |word| {
                let _ = heard.send((number, Heard::Word(word)));
            };
            let ended = catch_unwind(AssertUnwindSafe(|| work(&told, &say)));
            let error = match ended {
                Ok(ended) => ended.err().map(|error| error.to_string()),
                Err(_) => Some("it panicked".to_owned()),
            };
            let _ = heard.send((number, Heard::Gone(error)));
        });
        let name = format!("thread {number}");
        Member {
            name,
            body: Body::Thread(Some(tell)),
            ears: Some(ears),
        }
    }

    /// Its process, if it is one.
    pub fn as_process(&mut self) -> Option<&mut Process> {
        match &mut self.body {
            Body::Process(process) => Some(process),
            Body::Thread(_) => None,
        }
    }

    /// Whether it is a process, which can be killed and stopped.
    pub fn is_process(&self) -> bool {
        matches!(self.body, Body::Process(_))
    }

    /// When it was killed, if it was.
    pub fn killed(&self) -> Option<Moment> {
        match &self.body {
            Body::Process(process) => process.killed(),
            Body::Thread(_) => None,
        }
    }

    /// Tells it a call. One that has ended says so itself.
    pub fn tell(&mut self, call: C) {
        match &mut self.body {
            Body::Process(process) => process.tell(&call),
            Body::Thread(calls) => {
                let _ = calls.as_ref().map(|calls| calls.send(call));
            }
        }
    }

    /// Tells it to leave: no call comes any more.
    pub fn leave(&mut self) {
        match &mut self.body {
            Body::Process(process) => process.leave(),
            Body::Thread(calls) => *calls = None,
        }
    }

    /// Waits for the end of one that is gone. What went wrong, if it was not killed.
    pub fn bury(&mut self) -> Option<String> {
        if let Some(ears) = self.ears.take() {
            let _ = ears.join();
        }
        let process = self.as_process()?;
        match process.child.wait() {
            Ok(status) if status.success() || process.killed.is_some() => None,
            Ok(status) => Some(format!("it ended with {status}")),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// If this process is a member, does its work, and returns its exit code. The channel of the calls
/// ends when the member is to leave, also because its parent is gone.
pub fn serve<O, C, W>(
    work: impl FnOnce(O, &Receiver<C>, &dyn Fn(W)) -> io::Result<()>,
) -> Option<ExitCode>
where
    O: DeserializeOwned,
    C: DeserializeOwned + Send + 'static,
    W: Serialize,
{
    let mut arguments = env::args().skip(1);
    if arguments.next().as_deref() != Some(MEMBER) {
        return None;
    }
    end_with_the_parent();
    let (tell, told) = channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let sent = serde_json::from_str(&line).is_ok_and(|call| tell.send(call).is_ok());
            if !sent {
                break;
            }
        }
    });
    let order = serde_json::from_str(&arguments.next().unwrap_or_default());
    let ended = order
        .map_err(io::Error::other)
        .and_then(|order| work(order, &told, &|word| write(&Line::Says(word))));
    Some(match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            write(&Line::<W>::Fails(error.to_string()));
            ExitCode::FAILURE
        }
    })
}

/// Says a word from anywhere in the process of a member.
pub fn say(word: &impl Serialize) {
    write(&Line::Says(word));
}

fn write(line: &Line<impl Serialize>) {
    let mut line = serde_json::to_vec(line).expect("words are plain data");
    line.push(b'\n');
    let mut out = io::stdout().lock();
    // Without a parent there is nobody to tell.
    let _ = out.write_all(&line).and_then(|()| out.flush());
}

/// The parent's end, however it comes, is the child's end too, also if it is stopped.
fn end_with_the_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // Where it can't be set the end of the input has to do.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}

/// The next thing that is heard, if something is before that moment.
pub fn hear<W>(heard: &Receiver<(usize, Heard<W>)>, until: Moment) -> Option<(usize, Heard<W>)> {
    let left = Duration::from_nanos(until.saturating_sub(now()));
    heard.recv_timeout(left).ok()
}
