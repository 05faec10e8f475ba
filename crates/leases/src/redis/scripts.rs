//! The scripts, and the calls of them.
//!
//! A call names its script by hash. If the server does not have the script, the same call is sent
//! again with the text of the script, which the server keeps. `SCRIPT LOAD` would not do: it has no
//! key, so a proxy that hides a cluster could send it to the wrong node.

use redis::{Cmd, Script};

use crate::sync::Arc;

/// All scripts.
pub(super) struct Scripts {
    pub(super) acquire: Text,
    pub(super) renew: Text,
    pub(super) release: Text,
    pub(super) ready: Text,
    pub(super) policy: Text,
    pub(super) holder: Text,
    pub(super) scan: Text,
    pub(super) leave: Text,
    pub(super) detach: Text,
    pub(super) resume: Text,
}

/// A script with its hash.
#[derive(Clone)]
pub(super) struct Text {
    text: &'static str,
    hash: Arc<str>,
}

impl Text {
    fn new(text: &'static str) -> Self {
        let hash = Script::new(text).get_hash().into();
        Text { text, hash }
    }
}

impl Scripts {
    fn each(&self) -> [&Text; 10] {
        [
            &self.acquire,
            &self.renew,
            &self.release,
            &self.ready,
            &self.policy,
            &self.holder,
            &self.scan,
            &self.leave,
            &self.detach,
            &self.resume,
        ]
    }

    pub(super) fn new() -> Self {
        Scripts {
            acquire: Text::new(concat!(
                include_str!("guard.lua"),
                include_str!("acquire.lua")
            )),
            renew: Text::new(include_str!("renew.lua")),
            release: Text::new(include_str!("release.lua")),
            ready: Text::new(concat!(
                include_str!("guard.lua"),
                include_str!("ready.lua")
            )),
            policy: Text::new(include_str!("policy.lua")),
            holder: Text::new(include_str!("holder.lua")),
            scan: Text::new(include_str!("scan.lua")),
            leave: Text::new(include_str!("leave.lua")),
            detach: Text::new(include_str!("detach.lua")),
            resume: Text::new(include_str!("resume.lua")),
        }
    }
}

/// Returns the commands in the line of a script at which it has failed, by what the server says: it
/// has the hash of the script and `user_script:LINE`.
pub(super) fn commands_at(details: &str) -> Option<String> {
    let (_, place) = details.split_once("user_script:")?;
    let digits = place.split(|c: char| !c.is_ascii_digit()).next()?;
    let line: usize = digits.parse().ok()?;
    let all = Scripts::new();
    let script = all
        .each()
        .into_iter()
        .find(|one| details.contains(&*one.hash))?;
    let line = script.text.lines().nth(line.checked_sub(1)?)?;
    let after = line.split("call('").skip(1);
    let commands: Vec<_> = after.filter_map(|rest| rest.split('\'').next()).collect();
    (!commands.is_empty()).then(|| commands.join(" or "))
}

/// One call of a script.
pub(super) struct Call {
    script: Text,
    keys: usize,
    /// The keys, then the other arguments.
    args: Vec<String>,
    /// Whether the epoch of the connection is the last argument.
    with_epoch: bool,
}

impl Call {
    pub(super) fn new(script: &Text, keys: impl IntoIterator<Item = String>) -> Self {
        let args: Vec<_> = keys.into_iter().collect();
        Call {
            script: script.clone(),
            keys: args.len(),
            args,
            with_epoch: false,
        }
    }

    /// Adds an argument.
    pub(super) fn arg(mut self, arg: &(impl ToString + ?Sized)) -> Self {
        self.args.push(arg.to_string());
        self
    }

    /// Adds the epoch of the connection, after the other arguments.
    pub(super) fn with_epoch(mut self) -> Self {
        self.with_epoch = true;
        self
    }

    /// Returns the command of the call on a connection of this epoch.
    pub(super) fn command(&self, by: By, epoch: Option<u64>) -> Cmd {
        let mut cmd = Cmd::new();
        match by {
            By::Hash => cmd.arg("EVALSHA").arg(&*self.script.hash),
            By::Text => cmd.arg("EVAL").arg(self.script.text),
        };
        cmd.arg(self.keys);
        for arg in &self.args {
            cmd.arg(arg);
        }
        if self.with_epoch {
            match epoch {
                Some(epoch) => cmd.arg(epoch),
                None => cmd.arg(-1),
            };
        }
        cmd
    }
}

/// How a call names its script.
#[derive(Clone, Copy)]
pub(super) enum By {
    Hash,
    Text,
}
