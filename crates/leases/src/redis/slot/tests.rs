//! What becomes of a connection, before a server that does what a test says.

use std::io::ErrorKind;
use std::net::Ipv4Addr;

use redis::RedisConnectionInfo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tourbillon::ManualClock;

use super::super::address;
use super::super::scripts::Scripts;
use super::*;

/// Nothing that answers takes so long.
const LIMIT: Duration = Duration::from_secs(60);
/// What a call gets that is not to be answered.
const SHORT: Duration = Duration::from_millis(50);

type Answers = Result<Vec<Value>, StoreError>;

/// A slot before a server.
struct Rig {
    listener: TcpListener,
    slot: Arc<Slot>,
    hand: ManualClock,
}

impl Rig {
    async fn new(user: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("redis://{user}{}/", listener.local_addr().unwrap());
        let (address, login) = address::read(&url, &RedisConnectionInfo::default()).unwrap();
        let server = Arc::new(Server::new(address, login, None));
        let hand = ManualClock::new();
        Rig {
            slot: Arc::new(Slot::new(server, 100, Clock::manual(&hand))),
            listener,
            hand,
        }
    }

    /// Begins a call.
    fn call(&self, limit: Duration) -> JoinHandle<Answers> {
        let (slot, limit) = (Arc::clone(&self.slot), Limit::new(limit));
        let calls = vec![Call::new(&Scripts::new().ready, ["k".to_owned()])];
        tokio::spawn(async move { slot.call(&calls, limit).await })
    }

    /// Takes the next connection.
    async fn accept(&self) -> Peer {
        let (stream, _) = self.listener.accept().await.unwrap();
        Peer(stream)
    }
}

/// The server's end of a connection.
struct Peer(TcpStream);

impl Peer {
    /// Waits for so many commands of this name. Returns false at the end of the connection.
    async fn hears(&self, command: &str, number: usize) -> bool {
        let (mut heard, mut times, mut byte) = (String::new(), 0, [0]);
        while times < number {
            self.0.readable().await.unwrap();
            match self.0.try_read(&mut byte) {
                Ok(0) => return false,
                Ok(_) => {
                    heard.push(byte[0].into());
                    times += usize::from(heard.ends_with(command));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Answers everything until the end of the connection.
    async fn serves(&self) {
        while self.hears("EVALSHA", 1).await {
            self.says(":1\r\n").await;
        }
    }

    async fn says(&self, answer: &str) {
        self.0.writable().await.unwrap();
        let written = self.0.try_write(answer.as_bytes());
        assert_eq!(written.unwrap(), answer.len());
    }

    /// Hears one call and answers it.
    async fn answers(&self) {
        assert!(self.hears("EVALSHA", 1).await);
        self.says(":1\r\n").await;
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let test = timeout(LIMIT, test);
        test.await.expect("it ends");
    });
}

fn answered(answers: &Answers) {
    assert_eq!(*answers, Ok(vec![Value::Int(1)]));
}

fn late(answers: Answers) {
    let Err(StoreError::Unavailable(why)) = answers else {
        panic!("{answers:?}");
    };
    assert!(why.contains("in time"), "{why}");
}

#[test]
fn a_connection_without_a_call_for_more_than_a_minute_is_not_used_again() {
    run(async {
        let rig = Rig::new("").await;
        let first = rig.call(LIMIT);
        let peer = rig.accept().await;
        peer.answers().await;
        answered(&first.await.unwrap());
        for _ in 0..3 {
            rig.hand.advance(LONGEST_IDLE);
            let again = rig.call(LIMIT);
            peer.answers().await;
            answered(&again.await.unwrap());
        }
        rig.hand.advance(LONGEST_IDLE + Duration::from_nanos(1));
        let last = rig.call(LIMIT);
        rig.accept().await.answers().await;
        answered(&last.await.unwrap());
        assert!(!peer.hears("EVALSHA", 1).await, "it is closed");
    });
}

#[test]
fn a_connection_that_is_silent_is_given_up_by_the_call_that_times_out() {
    run(async {
        let rig = Rig::new("").await;
        let first = rig.call(LIMIT);
        let silent = rig.accept().await;
        silent.answers().await;
        answered(&first.await.unwrap());
        late(rig.call(SHORT).await.unwrap());
        let next = rig.call(LIMIT);
        rig.accept().await.answers().await;
        answered(&next.await.unwrap());
    });
}

#[test]
fn a_connection_that_answers_others_is_kept() {
    run(async {
        let rig = Rig::new("").await;
        let first = rig.call(LIMIT);
        let peer = rig.accept().await;
        assert!(peer.hears("EVALSHA", 1).await);
        let second = rig.call(20 * SHORT);
        assert!(peer.hears("EVALSHA", 1).await);
        // The first one is answered after the second one was sent.
        peer.says(":1\r\n").await;
        answered(&first.await.unwrap());
        let third = rig.call(LIMIT);
        assert!(peer.hears("EVALSHA", 1).await);
        late(second.await.unwrap());
        let fourth = rig.call(LIMIT);
        assert!(peer.hears("EVALSHA", 1).await);
        // The answer that comes late is nobody's.
        peer.says(":2\r\n:1\r\n:1\r\n").await;
        answered(&third.await.unwrap());
        answered(&fourth.await.unwrap());
    });
}

#[test]
fn a_call_that_comes_at_the_limit_of_a_silent_one_connects_anew() {
    run(async {
        let rig = Rig::new("").await;
        let first = rig.call(LIMIT);
        let silent = rig.accept().await;
        silent.answers().await;
        answered(&first.await.unwrap());
        let over = rig.call(SHORT);
        assert!(silent.hears("EVALSHA", 1).await);
        // This thread is away, so no timer of the other call has come.
        let limit = Limit::new(SHORT);
        while !limit.is_near() {
            std::thread::yield_now();
        }
        let (link, before) = rig.slot.take(Limit::new(LIMIT));
        assert_eq!((link.state(), before), (LinkState::Connecting, None));
        late(over.await.unwrap());
    });
}

#[test]
fn calls_of_a_connection_that_is_given_up_may_still_be_answered() {
    run(async {
        let rig = Rig::new("").await;
        let first = rig.call(LIMIT);
        let peer = rig.accept().await;
        peer.answers().await;
        answered(&first.await.unwrap());
        let long = rig.call(LIMIT);
        assert!(peer.hears("EVALSHA", 1).await);
        late(rig.call(SHORT).await.unwrap());
        let next = rig.call(LIMIT);
        rig.accept().await.answers().await;
        answered(&next.await.unwrap());
        peer.says(":1\r\n").await;
        answered(&long.await.unwrap());
        assert!(
            peer.hears("EVALSHA", 1).await,
            "that of the call that is over"
        );
        assert!(!peer.hears("EVALSHA", 1).await, "it is closed");
    });
}

#[test]
fn an_attempt_to_connect_is_given_up_as_well() {
    run(async {
        let rig = Rig::new(":secret@").await;
        let long = rig.call(LIMIT);
        let silent = rig.accept().await;
        assert!(silent.hears("AUTH", 1).await);
        late(rig.call(10 * SHORT).await.unwrap());
        // It has made one of its own.
        let own = rig.accept().await;
        assert!(own.hears("AUTH", 1).await);
        assert!(!own.hears("AUTH", 1).await, "it is closed");
        let next = rig.call(LIMIT);
        for (peer, call) in [(rig.accept().await, next), (silent, long)] {
            peer.says("+OK\r\n").await;
            peer.answers().await;
            answered(&call.await.unwrap());
        }
    });
}

#[test]
fn an_attempt_that_hangs_takes_a_part_of_the_time_of_others_alone() {
    run(async {
        let rig = Rig::new(":secret@").await;
        let first = rig.call(LIMIT);
        let silent = rig.accept().await;
        assert!(silent.hears("AUTH", 1).await);
        let second = rig.call(10 * SHORT);
        let peer = rig.accept().await;
        peer.says("+OK\r\n").await;
        peer.answers().await;
        answered(&second.await.unwrap());
        silent.says("+OK\r\n").await;
        silent.answers().await;
        answered(&first.await.unwrap());
    });
}

#[test]
fn an_attempt_of_a_call_with_less_time_is_followed_by_another_one() {
    run(async {
        let rig = Rig::new(":secret@").await;
        let short = rig.call(SHORT);
        let _silent = rig.accept().await;
        let long = rig.call(LIMIT);
        late(short.await.unwrap());
        let peer = rig.accept().await;
        peer.says("+OK\r\n").await;
        peer.answers().await;
        answered(&long.await.unwrap());
    });
}

#[test]
fn a_call_is_sent_again_if_a_connection_from_before_is_closed_and_no_more_than_once() {
    run(async {
        let rig = Rig::new("").await;
        let first = rig.call(LIMIT);
        let peer = rig.accept().await;
        peer.answers().await;
        answered(&first.await.unwrap());
        let again = rig.call(LIMIT);
        assert!(peer.hears("EVALSHA", 1).await);
        drop(peer);
        let peer = rig.accept().await;
        peer.answers().await;
        answered(&again.await.unwrap());
        // The second time the connection was made for the call.
        let lost = rig.call(LIMIT);
        assert!(peer.hears("EVALSHA", 1).await);
        drop(peer);
        let peer = rig.accept().await;
        assert!(peer.hears("EVALSHA", 1).await);
        drop(peer);
        let lost = lost.await.unwrap();
        assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
    });
}

#[test]
fn a_password_that_is_wrong_is_said_and_the_next_call_logs_in_anew() {
    run(async {
        let rig = Rig::new(":secret@").await;
        let call = rig.call(LIMIT);
        let peer = rig.accept().await;
        assert!(peer.hears("AUTH", 1).await);
        peer.says("-WRONGPASS invalid password\r\n").await;
        let refused = call.await.unwrap();
        let Err(StoreError::Refused(why)) = refused else {
            panic!("{refused:?}");
        };
        assert!(why.contains("WRONGPASS"), "{why}");
        let call = rig.call(LIMIT);
        let peer = rig.accept().await;
        peer.says("+OK\r\n").await;
        peer.answers().await;
        answered(&call.await.unwrap());
    });
}

#[test]
fn a_large_batch_is_sent_in_portions() {
    run(async {
        let rig = Rig::new("").await;
        let (slot, scripts) = (Arc::clone(&rig.slot), Scripts::new());
        let batch = (0..450).map(|at| Call::new(&scripts.renew, [format!("k{at}")]));
        let calls: Vec<_> = batch.collect();
        let call = tokio::spawn(async move {
            let limit = Limit::new(LIMIT);
            slot.call(&calls, limit).await
        });
        let peer = rig.accept().await;
        // Some portions are under way together, and no others.
        assert!(peer.hears("EVALSHA", 400).await);
        assert!(!call.is_finished());
        peer.says(&":1\r\n".repeat(100)).await;
        assert!(peer.hears("EVALSHA", 50).await);
        peer.says(&":1\r\n".repeat(350)).await;
        assert_eq!(call.await.unwrap(), Ok(vec![Value::Int(1); 450]));
    });
}

#[test]
fn a_server_whose_answers_come_late_is_slow_and_keeps_its_connection() {
    run(async {
        let rig = Rig::new("").await;
        let before = rig.call(LIMIT);
        let peer = rig.accept().await;
        assert!(peer.hears("EVALSHA", 1).await);
        before.abort();
        let slow = rig.call(20 * SHORT);
        assert!(peer.hears("EVALSHA", 1).await);
        // The answer to the one before comes while this one waits, and is nobody's.
        peer.says(":1\r\n").await;
        late(slow.await.unwrap());
        // Something was received while it waited.
        let last = rig.call(LIMIT);
        assert!(peer.hears("EVALSHA", 1).await);
        peer.says(":2\r\n").await;
        peer.says(":1\r\n").await;
        answered(&last.await.unwrap());
    });
}

#[test]
fn a_login_that_takes_longer_than_the_patience_of_callers_serves_all_of_them() {
    run(async {
        let rig = Rig::new(":secret@").await;
        let limit = Duration::from_secs(8);
        let calls: Vec<_> = (0..10).map(|_| rig.call(limit)).collect();
        let served = tokio::spawn(async move {
            loop {
                let peer = rig.accept().await;
                tokio::spawn(async move {
                    assert!(peer.hears("AUTH", 1).await);
                    // A quarter of the limit is what callers wait for the attempt of another one.
                    tokio::time::sleep(limit * 3 / 8).await;
                    peer.says("+OK\r\n").await;
                    peer.serves().await;
                });
            }
        });
        for call in calls {
            answered(&call.await.unwrap());
        }
        served.abort();
    });
}

#[test]
fn a_call_that_is_dropped_is_not_sent_again() {
    run(async {
        let rig = Rig::new(":secret@").await;
        let dropped = rig.call(LIMIT);
        let peer = rig.accept().await;
        assert!(peer.hears("AUTH", 1).await);
        dropped.abort();
        assert!(dropped.await.unwrap_err().is_cancelled());
        let next = rig.call(LIMIT);
        peer.says("+OK\r\n").await;
        peer.answers().await;
        answered(&next.await.unwrap());
        drop(rig);
        assert!(!peer.hears("EVALSHA", 1).await, "nothing more is sent");
    });
}

#[test]
fn what_a_server_says_before_it_closes_a_new_connection_is_told_to_a_batch() {
    run(async {
        let rig = Rig::new("").await;
        for (said, refused) in [
            ("-DENIED it runs in protected mode", true),
            ("-ERR max number of clients reached", false),
        ] {
            let (slot, scripts) = (Arc::clone(&rig.slot), Scripts::new());
            let batch = (0..3).map(|at| Call::new(&scripts.renew, [format!("k{at}")]));
            let calls: Vec<_> = batch.collect();
            let call = tokio::spawn(async move { slot.call(&calls, Limit::new(LIMIT)).await });
            let peer = rig.accept().await;
            assert!(peer.hears("EVALSHA", 3).await);
            peer.says(said).await;
            peer.says("\r\n").await;
            drop(peer);
            let error = call.await.unwrap().unwrap_err();
            assert_eq!(!error.may_pass(), refused, "{error}");
            assert!(error.to_string().contains(&said[1..]), "{error}");
        }
    });
}

#[test]
fn the_answers_that_came_before_the_end_of_a_connection_are_kept() {
    run(async {
        let rig = Rig::new("").await;
        let first = rig.call(LIMIT);
        let peer = rig.accept().await;
        peer.answers().await;
        answered(&first.await.unwrap());
        let (slot, scripts) = (Arc::clone(&rig.slot), Scripts::new());
        let batch = (0..250).map(|at| Call::new(&scripts.renew, [format!("k{at}")]));
        let calls: Vec<_> = batch.collect();
        let call = tokio::spawn(async move { slot.call(&calls, Limit::new(LIMIT)).await });
        assert!(peer.hears("EVALSHA", 250).await);
        peer.says(&":1\r\n".repeat(100)).await;
        peer.says(&":1\r\n".repeat(30)).await;
        drop(peer);
        let peer = rig.accept().await;
        // The portion that was answered is not sent again.
        assert!(peer.hears("EVALSHA", 150).await);
        peer.says(&":2\r\n".repeat(150)).await;
        let answers = call.await.unwrap().unwrap();
        let (kept, again) = answers.split_at(100);
        assert_eq!(
            (kept, again),
            (&vec![Value::Int(1); 100][..], &vec![Value::Int(2); 150][..])
        );
    });
}
