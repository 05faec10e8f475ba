//! Sentinels: servers that watch a master and its replicas, and know which one is the master.
//!
//! - **SENTINEL-1** Each connection is made to the master that the Sentinels name at that time. All of
//!   them are asked, and the newest answer of a majority counts, or of all that answer. So one that
//!   hangs costs no time, and one that is cut off from the others is not believed.
//! - **SENTINEL-2** Each failover has a number, the epoch. Grants carry the epoch of their connection
//!   (`guard.lua`). So what a failover may have lost is waited for, and a master that was replaced grants
//!   nothing once somebody has told it.

use std::fmt;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{RedisConnectionInfo, Value, cmd};
use tokio::time::timeout;

use super::errors::{CallFault, answered, cut};
use super::server::Server;
use crate::remote::Limit;
use crate::store::StoreError;

/// The port of a Sentinel whose address names none.
pub(super) const PORT: u16 = 26_379;

/// The Sentinels of a master.
pub(super) struct Sentinels {
    pub(super) hosts: Vec<(String, u16)>,
    /// The name of the master.
    pub(super) master: String,
    /// How to log in to them.
    pub(super) login: RedisConnectionInfo,
}

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
        let (mut newest, mut answers, mut fault): (Option<Master>, _, _) = (None, 0, None);
        // The rest of the time is for the master.
        let share = Limit::new(limit.left() / 2);
        while answers * 2 <= self.hosts.len()
            && let Ok(Some(answer)) = timeout(share.left(), asked.next()).await
        {
            match answer {
                Ok(master) => {
                    answers += 1;
                    if newest
                        .as_ref()
                        .is_none_or(|newest| newest.epoch < master.epoch)
                    {
                        newest = Some(master);
                    }
                }
                // A refusal has something to say, and others only that they are not there.
                Err(refused @ CallFault::Other(StoreError::Refused(_))) => fault = Some(refused),
                Err(other) => fault = fault.or(Some(other)),
            }
        }
        newest.ok_or_else(|| fault.unwrap_or_else(|| CallFault::late(server)))
    }

    async fn ask_one(
        &self,
        server: &Server,
        host: &str,
        port: u16,
        limit: Limit,
    ) -> Result<Master, CallFault> {
        let bytes = server.connect_tcp(host, port, limit).await?;
        let mut open = server.speak(bytes, 0).await?;
        server.log_in(&mut open, &self.login).await?;
        let mut question = cmd("SENTINEL");
        question.arg("MASTER").arg(&self.master);
        let answer = open.connection.send_packed_command(&question).await;
        let answer = answer.map_err(|error| open.fault(&error, server))?;
        if let Value::ServerError(error) = &answer {
            let said = error.details().unwrap_or_default();
            if said.contains("No such master") {
                return Err(CallFault::Other(StoreError::Refused(format!(
                    "{server}: no Sentinel at {host}:{port} knows this master; `sentinel masters` \
                     lists those that it knows"
                ))));
            }
            return Err(CallFault::Other(answered(error)));
        }
        master(&answer).ok_or_else(|| {
            let shown = cut(&format!("{answer:?}"));
            CallFault::Other(StoreError::Refused(format!(
                "{server}: an answer that no Sentinel gives, from {host}:{port}: {shown}"
            )))
        })
    }
}

/// Reads the answer to `SENTINEL MASTER`: names of fields, each with its value behind it.
fn master(answer: &Value) -> Option<Master> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let field = |name: &str| {
        let mut pairs = parts.chunks_exact(2);
        let found = pairs.find(|pair| text(&pair[0]).as_deref() == Some(name));
        found.and_then(|pair| text(&pair[1]))
    };
    Some(Master {
        host: field("ip").filter(|host| !host.is_empty())?,
        port: field("port")?.parse().ok()?,
        epoch: field("config-epoch")?.parse().ok()?,
    })
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the Sentinels", self.master)?;
        for (at, (host, port)) in self.hosts.iter().enumerate() {
            let between = if at == 0 { " " } else { "," };
            write!(f, "{between}{host}:{port}")?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_a_sentinel_is_read_by_the_names_of_its_fields() {
        let answer = |fields: &[&str]| {
            let text = |text: &&str| Value::BulkString(text.as_bytes().to_vec());
            Value::Array(fields.iter().map(text).collect())
        };
        let whole = [
            "name",
            "shop",
            "port",
            "7",
            "x",
            "",
            "ip",
            "::1",
            "config-epoch",
            "3",
        ];
        let read = master(&answer(&whole)).unwrap();
        assert_eq!((&*read.host, read.port, read.epoch), ("::1", 7, 3));
        for wrong in [
            &whole[..8],
            &["ip", "", "port", "7", "config-epoch", "3"],
            &["ip", "h", "port", "70000", "config-epoch", "3"],
            &["ip", "h", "port", "7", "config-epoch", "-1"],
            &[],
        ] {
            assert_eq!(master(&answer(wrong)), None, "{wrong:?}");
        }
        assert_eq!(master(&Value::Nil), None);
    }
}
