//! Sentinels: servers that watch a master and its replicas, and know which one is the master.
//!
//! - **SENTINEL-1** Each connection is made to the master that the Sentinels name at that time. All of
//!   them are asked at once, and the newest answer of a majority counts. So one that hangs costs no
//!   time, and one that is cut off from the others is not believed. Without a majority there is no
//!   connection.
//! - **SENTINEL-2** Each failover has a number, the epoch. Grants carry the epoch of their connection
//!   (`guard.lua`), so that what a failover may have lost is waited for.
//! - **SENTINEL-3** While there are calls, the Sentinels are asked again every 3 s. A connection of
//!   a smaller epoch than the newest is not used any more. So renewals go to a server that was replaced
//!   for some seconds at most, if this process reaches the Sentinels. The wait after a failover is longer by
//!   that (`LATER` in `guard.lua`).

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, ServerError, Value};
use tokio::time::timeout;

use super::address::Sentinels;
use super::errors::{CallFault, answered, cut};
use super::scripts::Standing;
use super::server::Server;
use crate::remote::Limit;
use crate::store::StoreError;

/// How long the Sentinels may take together.
const LONGEST: Duration = Duration::from_secs(1);

/// A master at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Master {
    pub(super) host: String,
    pub(super) port: u16,
    /// The number of the failover that has made it the master. At the beginning it is 0.
    pub(super) epoch: u64,
}

impl Sentinels {
    /// Asks for the master. Call this within a runtime.
    pub(super) async fn ask(&self, server: &Server, limit: Limit) -> Result<Master, CallFault> {
        let mut asked: FuturesUnordered<_> = self
            .hosts
            .iter()
            .map(|(host, port)| self.ask_one(server, host, *port, limit))
            .collect();
        // The rest of the time is for the master. An attempt that takes more than a quarter is given up.
        let share = Limit::new((limit.left() / 5).min(LONGEST));
        let majority = self.hosts.len() / 2 + 1;
        let (mut masters, mut refusals, mut fault) = (Vec::new(), 0, None);
        while masters.len() < majority
            && let Ok(Some(answer)) = timeout(share.left(), asked.next()).await
        {
            match answer {
                Ok(master) => masters.push(master),
                Err(refused @ CallFault::Other(StoreError::Refused(_))) => {
                    refusals += 1;
                    // It has something to say, and others only that they are not there.
                    fault = Some(refused);
                }
                Err(other) => fault = fault.or(Some(other)),
            }
        }
        let newest = masters.iter().max_by_key(|master| master.epoch);
        match (newest, fault) {
            (Some(newest), _) if masters.len() >= majority => Ok(newest.clone()),
            (_, Some(fault)) if refusals >= majority => Err(fault),
            (_, fault) => {
                let fault = StoreError::from(fault.unwrap_or_else(|| CallFault::late(server)));
                Err(CallFault::Other(StoreError::Unavailable(format!(
                    "{} of {majority} answers that are needed: {fault}",
                    masters.len()
                ))))
            }
        }
    }

    async fn ask_one(
        &self,
        server: &Server,
        host: &str,
        port: u16,
        limit: Limit,
    ) -> Result<Master, CallFault> {
        let bytes = server.connect_tcp(host, port, limit).await?;
        let mut open = server.speak(bytes, Standing::default()).await?;
        server.log_in(&mut open, &self.login).await?;
        loop {
            // In a failover a Sentinel changes the epoch before the address in its list of masters. Only
            // the other command has the new address then.
            let mut questions = Pipeline::new();
            questions.cmd("SENTINEL").arg("MASTER").arg(&self.master);
            questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME");
            questions.arg(&self.master);
            questions.cmd("SENTINEL").arg("MASTER").arg(&self.master);
            let answers = open.connection.send_packed_commands(&questions, 0, 3).await;
            let answers = answers.map_err(|error| open.fault(&error, server))?;
            for answer in &answers {
                if let Value::ServerError(error) = answer {
                    return Err(self.refusal(server, error, (host, port)));
                }
            }
            let strange = || {
                let shown = cut(&format!("{answers:?}"));
                CallFault::Other(StoreError::Refused(format!(
                    "{server}: an answer that no Sentinel gives, from {host}:{port}: {shown}"
                )))
            };
            let [before, address, after] = &answers[..] else {
                return Err(strange());
            };
            let (Some(before), Some((host, port)), Some(after)) =
                (epoch(before), address_of(address), epoch(after))
            else {
                return Err(strange());
            };
            if before == after {
                let epoch = after;
                return Ok(Master { host, port, epoch });
            }
        }
    }

    fn refusal(&self, server: &Server, error: &ServerError, at: (&str, u16)) -> CallFault {
        let said = error.details().unwrap_or_default();
        CallFault::Other(match said.contains("No such master") {
            true => StoreError::Refused(format!(
                "{server}: the Sentinel at {}:{} does not know this master; `sentinel masters` lists \
                 those that it knows",
                at.0, at.1
            )),
            false => answered(error),
        })
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    }
}

/// Reads the answer to `SENTINEL MASTER`: names of fields, each with its value behind it.
fn epoch(answer: &Value) -> Option<u64> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let mut pairs = parts.chunks_exact(2);
    let found = pairs.find(|pair| text(&pair[0]).as_deref() == Some("config-epoch"));
    found.and_then(|pair| text(&pair[1])?.parse().ok())
}

/// Reads the answer to `SENTINEL GET-MASTER-ADDR-BY-NAME`.
fn address_of(answer: &Value) -> Option<(String, u16)> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let [host, port] = &parts[..] else {
        return None;
    };
    let host = text(host).filter(|host| !host.is_empty())?;
    Some((host, text(port)?.parse().ok()?))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn array(fields: &[&str]) -> Value {
        let text = |text: &&str| Value::BulkString(text.as_bytes().to_vec());
        Value::Array(fields.iter().map(text).collect())
    }

    #[test]
    fn the_answers_of_a_sentinel_are_read() {
        let whole = ["name", "config-epoch", "x", "", "config-epoch", "3"];
        assert_eq!(epoch(&array(&whole)), Some(3));
        for wrong in [
            &whole[..5],
            &["config-epoch", "-1"],
            &["config-epoch", ""],
            &[],
        ] {
            assert_eq!(epoch(&array(wrong)), None, "{wrong:?}");
        }
        assert_eq!(epoch(&Value::Nil), None);
        let address = Some(("::1".to_owned(), 7));
        assert_eq!(address_of(&array(&["::1", "7"])), address);
        for wrong in [&["", "7"][..], &["h", "70000"], &["h"], &["h", "7", "8"]] {
            assert_eq!(address_of(&array(wrong)), None, "{wrong:?}");
        }
        assert_eq!(address_of(&Value::Nil), None);
    }
}
