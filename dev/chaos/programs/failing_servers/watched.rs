//! A master of Redis and its replica, which a Sentinel watches.

use std::thread;
use std::time::Duration;

use chaos::servers::redis::Server;

use super::plan::OnServer;

/// A server that stands still for so long is replaced, with a reserve.
const REPLACED: Duration = Duration::from_millis(500);

/// Two servers of which one is the master.
pub(crate) struct Watched {
    servers: [Server; 2],
    sentinel: Server,
}

impl Watched {
    pub(crate) fn start() -> Self {
        let master = Server::start();
        let replica = master.replica();
        let sentinel = master.sentinel();
        Watched {
            servers: [master, replica],
            sentinel,
        }
    }

    pub(crate) fn sentinel(&self) -> &Server {
        &self.sentinel
    }

    pub(crate) fn servers(&self) -> &[Server; 2] {
        &self.servers
    }

    /// The place of the server that the Sentinel names. Between two steps it is the master.
    fn named(&self) -> usize {
        let named = self
            .sentinel
            .cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "shop"]);
        let port = self.servers[1].port().to_string();
        usize::from(named.contains(&format!("\"{port}\"")))
    }

    pub(crate) fn master(&self) -> &Server {
        &self.servers[self.named()]
    }

    /// Does to the master what is planned. A master that is killed or stands still for long is replaced.
    pub(crate) fn befall(
        &mut self,
        fault: OnServer,
        on_one: impl Fn(&mut Server, OnServer) -> redis::RedisResult<()>,
    ) -> redis::RedisResult<()> {
        let at = self.named();
        let shortly = |time: Duration| time.min(REPLACED / 2);
        match fault {
            OnServer::Kill(outage) => {
                self.replace(at, Server::kill);
                thread::sleep(outage);
                self.servers[at].restart();
                // As its file would say by now.
                let master = self.servers[1 - at].port().to_string();
                self.servers[at].cli(&["REPLICAOF", "127.0.0.1", &master]);
                Ok(())
            }
            OnServer::Stop(time) => {
                self.replace(at, |master| master.stop());
                thread::sleep(time);
                // It counts as the master until the Sentinel has told it otherwise.
                self.servers[at].resume();
                Ok(())
            }
            OnServer::Pause(time, all) => {
                on_one(&mut self.servers[at], OnServer::Pause(shortly(time), all))
            }
            OnServer::Sleep(time) => on_one(&mut self.servers[at], OnServer::Sleep(shortly(time))),
            fault => on_one(&mut self.servers[at], fault),
        }
    }

    /// Harms the master, and waits until the replica is the master.
    fn replace(&mut self, at: usize, harm: impl Fn(&mut Server)) {
        let replica = &self.servers[1 - at];
        replica.until(&["INFO", "replication"], "master_link_status:up");
        let known = ["SENTINEL", "CKQUORUM", "shop"];
        self.sentinel.until(&known, "OK");
        self.sentinel
            .until(&["SENTINEL", "REPLICAS", "shop"], "master-link-status\"");
        harm(&mut self.servers[at]);
        self.servers[1 - at].until(&["ROLE"], "\"master\"");
    }
}
