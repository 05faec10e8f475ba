//! The weaknesses of the stand-ins, and the abilities of the checker. The protocols have to cope
//! with each of these weaknesses. A test shows each one by an assertion that some execution
//! violates.
//!
//! Teeth: `teeth/litmus-stand-in-fences.patch` makes the stand-in stronger than it may be.

use loom::thread;

use super::check;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering, fence};
use crate::sync::deque::{Injector, Steal, Worker};

/// One thread pushes and then reads a flag. The other thread sets the flag and then checks the
/// queue. Returns true if both came too early: then a sleeper misses a ticket.
fn both_miss(fences: bool, look: fn(&Injector<u8>) -> bool) -> bool {
    let queue = Arc::new(Injector::new());
    let flag = Arc::new(AtomicUsize::new(0));
    let pusher = {
        let (queue, flag) = (Arc::clone(&queue), Arc::clone(&flag));
        thread::spawn(move || {
            queue.push(1);
            if fences {
                fence(Ordering::SeqCst);
            }
            flag.load(Ordering::Relaxed) == 0
        })
    };
    flag.store(1, Ordering::Relaxed);
    if fences {
        fence(Ordering::SeqCst);
    }
    let unseen = look(&queue);
    pusher.join().unwrap() && unseen
}

#[test]
#[should_panic(expected = "missed by is_empty")]
fn without_fences_is_empty_misses_a_push() {
    check(2, || {
        assert!(!both_miss(false, Injector::is_empty), "missed by is_empty");
    });
}

#[test]
#[should_panic(expected = "missed by len")]
fn without_fences_the_length_misses_a_push() {
    check(2, || {
        #[expect(clippy::len_zero, reason = "it is `len` that is on trial")]
        let by_len = |queue: &Injector<u8>| queue.len() == 0;
        assert!(!both_miss(false, by_len), "missed by len");
    });
}

#[test]
#[should_panic(expected = "missed by a steal")]
fn without_fences_a_steal_misses_a_push() {
    check(2, || {
        let steal = |queue: &Injector<u8>| queue.steal() == Steal::Empty;
        assert!(!both_miss(false, steal), "missed by a steal");
    });
}

#[test]
fn with_fences_nobody_misses_anything() {
    check(3, || assert!(!both_miss(true, Injector::is_empty)));
    #[expect(clippy::len_zero, reason = "it is `len` that is on trial")]
    let by_len = |queue: &Injector<u8>| queue.len() == 0;
    check(3, move || assert!(!both_miss(true, by_len)));
    check(3, || {
        let steal = |queue: &Injector<u8>| queue.steal() == Steal::Empty;
        assert!(!both_miss(true, steal));
    });
}

#[test]
#[should_panic(expected = "an old length")]
fn a_length_can_be_too_high() {
    check(2, || {
        let queue = Arc::new(Injector::new());
        queue.push(1);
        let done = Arc::new(AtomicUsize::new(0));
        let thief = {
            let (queue, done) = (Arc::clone(&queue), Arc::clone(&done));
            thread::spawn(move || {
                let _ = queue.steal();
                done.store(1, Ordering::Relaxed);
            })
        };
        if done.load(Ordering::Relaxed) == 1 {
            assert!(queue.is_empty(), "an old length");
        }
        thief.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "disturbed by a push")]
fn a_steal_answers_retry_when_a_push_comes_between() {
    check(2, || {
        let owner = Worker::new_fifo();
        let stealer = owner.stealer();
        owner.push(1);
        let thief = thread::spawn(move || stealer.steal());
        owner.push(2);
        let stolen = thief.join().unwrap();
        assert_ne!(stolen, Steal::Retry, "disturbed by a push");
    });
}

#[test]
fn who_takes_an_item_sees_what_led_to_it() {
    check(3, || {
        let owner = Worker::new_fifo();
        let stealer = owner.stealer();
        let before = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&before);
        let thief = thread::spawn(move || {
            if let Steal::Success(item) = stealer.steal() {
                assert_eq!((item, seen.load(Ordering::Relaxed)), (1, 1));
            }
        });
        before.store(1, Ordering::Relaxed);
        owner.push(1);
        thief.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "what the thief did before")]
fn an_owner_that_finds_nothing_is_not_ordered_with_the_thief() {
    check(2, || {
        let owner = Worker::new_fifo();
        let stealer = owner.stealer();
        owner.push(1);
        let before = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&before);
        let thief = thread::spawn(move || {
            written.store(1, Ordering::Relaxed);
            stealer.steal()
        });
        if owner.pop().is_none() {
            let seen = before.load(Ordering::Relaxed);
            assert_eq!(seen, 1, "what the thief did before");
        }
        let _ = thief.join().unwrap();
    });
}

#[test]
fn nothing_is_taken_twice_or_lost_by_owner_and_thief() {
    check(3, || {
        let owner = Worker::new_fifo();
        let stealer = owner.stealer();
        owner.push(1);
        owner.push(2);
        let thief = thread::spawn(move || {
            let local = Worker::new_fifo();
            let first = stealer.steal_batch_and_pop(&local);
            let mut all: Vec<u8> = local.pop().into_iter().collect();
            if let Steal::Success(item) = first {
                all.push(item);
            }
            all
        });
        let mut all: Vec<u8> = owner.pop().into_iter().collect();
        all.extend(thief.join().unwrap());
        all.extend(owner.pop());
        all.extend(owner.pop());
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
    });
}
