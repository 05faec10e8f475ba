//! A node of a cluster that says what the test wants.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A node that knows of one master with all slots. Ends with the process.
pub(crate) struct Says {
    pub(crate) port: u16,
    /// How often it was asked for the cluster.
    pub(crate) asked: Arc<AtomicUsize>,
    /// How many connections it has accepted.
    pub(crate) accepted: Arc<AtomicUsize>,
    /// The epoch and the port of the master. At first it is this node.
    pub(crate) master: Arc<Mutex<(u64, u16)>>,
    /// Set if it tells nothing of the cluster any more.
    pub(crate) refuses: Arc<AtomicBool>,
    /// Set if it takes longer to tell of the cluster: 400 ms.
    pub(crate) is_slow: Arc<AtomicBool>,
}

impl Says {
    /// Has this epoch, and answers each script with this. A port `own` stands for its own.
    pub(crate) fn new(epoch: u64, answer: &str) -> Self {
        Says::after(0, epoch, answer)
    }

    /// Says nothing on so many connections, which come first.
    pub(crate) fn after(silent: usize, epoch: u64, answer: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let says = Says {
            port,
            asked: Arc::default(),
            accepted: Arc::default(),
            master: Arc::new(Mutex::new((epoch, port))),
            refuses: Arc::default(),
            is_slow: Arc::default(),
        };
        let answer = answer.replace(":own\r", &format!(":{port}\r"));
        let (asked, accepted) = (Arc::clone(&says.asked), Arc::clone(&says.accepted));
        let (master, refuses) = (Arc::clone(&says.master), Arc::clone(&says.refuses));
        let is_slow = Arc::clone(&says.is_slow);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let is_silent = accepted.fetch_add(1, SeqCst) < silent;
                let (asked, master) = (Arc::clone(&asked), Arc::clone(&master));
                let (refuses, is_slow) = (Arc::clone(&refuses), Arc::clone(&is_slow));
                let answer = answer.clone();
                thread::spawn(move || {
                    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    while let Some(Ok(line)) = lines.next() {
                        let (epoch, port) = *master.lock().unwrap();
                        let said = match &*line {
                            "NODES" | "SLOTS" if refuses.load(SeqCst) => "-ERR no\r\n".to_owned(),
                            "NODES" => {
                                if is_slow.load(SeqCst) {
                                    thread::sleep(Duration::from_millis(400));
                                }
                                let nodes = format!(
                                    "me :{port}@1 myself,master - 0 0 {epoch} connected 0-16383\n"
                                );
                                format!("${}\r\n{nodes}\r\n", nodes.len())
                            }
                            "SLOTS" => {
                                asked.fetch_add(1, SeqCst);
                                let own = format!("*3\r\n$0\r\n\r\n:{port}\r\n$2\r\nme\r\n");
                                format!("*1\r\n*3\r\n:0\r\n:16383\r\n{own}")
                            }
                            "EVALSHA" => answer.clone(),
                            _ => continue,
                        };
                        if !is_silent {
                            let _ = stream.write_all(said.as_bytes());
                        }
                    }
                });
            }
        });
        says
    }
}
