//! The scripts, and the calls of them.
//!
//! A call names its script by hash. If the server does not have the script, the same call is sent
//! again with the text of the script, which the server keeps. `SCRIPT LOAD` would not do: it has no
//! key, so a proxy that hides a cluster could send it to the wrong node.

use redis::{Cmd, Script};

use super::keys::slot_of;
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
    pub(super) share: Text,
    pub(super) share_renew: Text,
    pub(super) share_release: Text,
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
    fn each(&self) -> [&Text; 13] {
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
            &self.share,
            &self.share_renew,
            &self.share_release,
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
            share: Text::new(concat!(
                include_str!("guard.lua"),
                include_str!("share.lua")
            )),
            share_renew: Text::new(include_str!("share_renew.lua")),
            share_release: Text::new(include_str!("share_release.lua")),
        }
    }
}

/// Returns the commands in the line of a script at which it has failed, by what the server says: it
/// has `user_script:LINE`, and Redis also the hash of the script.
pub(super) fn commands_at(details: &str) -> Option<String> {
    let (_, place) = details.split_once("user_script:")?;
    let digits = place.split(|c: char| !c.is_ascii_digit()).next()?;
    let line: usize = digits.parse().ok()?;
    let all = Scripts::new();
    let mut scripts = Vec::from(all.each());
    // Valkey does not tell which script it was. So all scripts are looked at.
    if scripts.iter().any(|one| details.contains(&*one.hash)) {
        scripts.retain(|one| details.contains(&*one.hash));
    }
    let line = line.checked_sub(1)?;
    let lines = scripts.iter().filter_map(|one| one.text.lines().nth(line));
    let after = lines.flat_map(|line| line.split("call('").skip(1));
    let mut commands: Vec<_> = after.filter_map(|rest| rest.split('\'').next()).collect();
    commands.sort_unstable();
    commands.dedup();
    (!commands.is_empty()).then(|| commands.join(" or "))
}

/// One call of a script.
pub(super) struct Call {
    script: Text,
    keys: usize,
    /// The keys, then the other arguments.
    args: Vec<String>,
    /// Whether the standing of the server is behind the other arguments.
    grants: bool,
    /// Whether the slot of the key moves to the server.
    asking: bool,
    /// The node of a cluster for which it is, if it has no key.
    node: Option<Arc<str>>,
}

/// A part of the servers that has data, and a marker, of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Spot {
    /// The destination of this marker.
    Marker(String),
    /// The node of a cluster with this identity.
    Node(Arc<str>),
}

impl Call {
    pub(super) fn new(script: &Text, keys: impl IntoIterator<Item = String>) -> Self {
        let args: Vec<_> = keys.into_iter().collect();
        Call {
            script: script.clone(),
            keys: args.len(),
            args,
            grants: false,
            asking: false,
            node: None,
        }
    }

    /// Creates a call for whatever has this data.
    pub(super) fn at(script: &Text, spot: &Spot) -> Self {
        match spot {
            Spot::Marker(key) => Call::new(script, [key.clone()]),
            Spot::Node(id) => Call {
                node: Some(Arc::clone(id)),
                ..Call::new(script, [])
            },
        }
    }

    /// Adds an argument.
    pub(super) fn arg(mut self, arg: &(impl ToString + ?Sized)) -> Self {
        self.args.push(arg.to_string());
        self
    }

    /// Adds the standing of the server, after the other arguments.
    pub(super) fn granting(mut self) -> Self {
        self.grants = true;
        self
    }

    pub(super) fn grants(&self) -> bool {
        self.grants
    }

    /// Sets whether the slot of the key moves to the server, which needs one more command in front.
    pub(super) fn set_asking(&mut self, asking: bool) {
        self.asking = asking;
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asking
    }

    /// Returns the identity of the node for which it is, if it has no key.
    pub(super) fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Returns the key that leads to the server.
    pub(super) fn key(&self) -> &str {
        self.args.first().map_or("", |key| key)
    }

    /// Returns the command of the call for a server of this standing.
    pub(super) fn command(&self, by: By, of: &Standing) -> Cmd {
        let mut cmd = Cmd::new();
        match by {
            By::Hash => cmd.arg("EVALSHA").arg(&*self.script.hash),
            By::Text => cmd.arg("EVAL").arg(self.script.text),
        };
        cmd.arg(self.keys);
        for arg in &self.args {
            cmd.arg(arg);
        }
        if self.grants {
            match of.epoch {
                Some(epoch) => cmd.arg(epoch),
                None => cmd.arg(-1),
            };
            if let Some(marker) = &of.marker {
                let key = if self.keys > 0 { self.key() } else { marker };
                cmd.arg(&**marker).arg(slot_of(key));
            }
        }
        cmd
    }
}

/// What grants say of the server to which they are sent.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Standing {
    /// The number of the failover that has made it the master, if it is one of several servers.
    pub(super) epoch: Option<u64>,
    /// The key of its marker, if it is a node of a cluster.
    pub(super) marker: Option<Arc<str>>,
}

impl Standing {
    pub(super) fn of_epoch(epoch: u64) -> Self {
        Standing {
            epoch: Some(epoch),
            marker: None,
        }
    }
}

/// How a call names its script.
#[derive(Clone, Copy)]
pub(super) enum By {
    Hash,
    Text,
}
