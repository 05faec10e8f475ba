//! Random calls of `or_compute`, awaited, with insertions and removals in between. Each answer and
//! each wake-up is compared with a plain model of single flight.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use kit::wakes::{Wakes, poll};
use proptest::prelude::*;
use tourbillon::test_util::SteppedMap;
use tourbillon::{EntryError, ExpiryMap, Found, InsertError, InsertRefusal, Time};

const KEYS: u8 = 3;

type Computed = Result<u32, u32>;
type Answer = Result<Found<u32>, EntryError<u8, u32, u32>>;

#[derive(Clone, Copy, Debug)]
enum Call {
    /// A further caller asks for this key.
    Begin(u8),
    /// The computation of a caller ends with a value or an error, whether it has begun or not.
    End(usize, bool),
    /// A caller is dropped.
    Drop(usize),
    Insert(u8),
    Remove(u8),
}

#[derive(Clone, PartialEq, Debug)]
enum State {
    /// It has to look for the value.
    Begins,
    Computes,
    Waits,
    /// Its wait has ended with this.
    HasAnswer(Answer),
}

struct Caller {
    key: u8,
    state: State,
    result: Option<Computed>,
    cell: Arc<Mutex<Option<Computed>>>,
    future: Pin<Box<dyn Future<Output = Answer>>>,
    wakes: Arc<Wakes>,
    /// How often the model has woken it.
    woken: usize,
}

/// The entries, and the callers that have no answer yet, by number.
struct Model {
    most: usize,
    entries: BTreeMap<u8, u32>,
    callers: BTreeMap<usize, Caller>,
}

impl Model {
    /// Ends the wait of all callers for this key.
    fn end_flight(&mut self, key: u8, state: impl Fn() -> State) {
        for caller in self.callers.values_mut() {
            if caller.key == key && caller.state == State::Waits {
                caller.state = state();
                caller.woken += 1;
            }
        }
    }

    fn is_computed(&self, key: u8) -> bool {
        let mut callers = self.callers.values();
        callers.any(|caller| caller.key == key && caller.state == State::Computes)
    }

    /// Ends the computation of a value, and returns the answer of the caller that has computed it.
    fn computed(&mut self, key: u8, result: Computed) -> Answer {
        let value = match result {
            Ok(value) => value,
            Err(error) => {
                self.end_flight(key, || State::Begins);
                return Err(EntryError::Make(error));
            }
        };
        if let Some(value) = self.entries.get(&key).copied() {
            self.end_flight(key, || State::HasAnswer(Ok(Found::Present(value))));
            return Ok(Found::Present(value));
        }
        if self.entries.len() == self.most {
            let refused = || Err(EntryError::Insert(full(key, value)));
            self.end_flight(key, || State::HasAnswer(refused()));
            return refused();
        }
        self.entries.insert(key, value);
        self.end_flight(key, || State::HasAnswer(Ok(Found::Present(value))));
        Ok(Found::Inserted {
            value,
            deadline: Time::MAX,
            replaced: None,
        })
    }

    /// The answer of one poll.
    fn poll(&mut self, number: usize) -> Poll<Answer> {
        let caller = &self.callers[&number];
        let (key, state, result) = (caller.key, caller.state.clone(), caller.result);
        let state = match state {
            State::HasAnswer(answer) => return Poll::Ready(answer),
            State::Begins => match self.entries.get(&key) {
                Some(value) => return Poll::Ready(Ok(Found::Present(*value))),
                None if self.is_computed(key) => State::Waits,
                None => State::Computes,
            },
            other => other,
        };
        self.callers.get_mut(&number).unwrap().state = state.clone();
        match (state, result) {
            (State::Computes, Some(result)) => Poll::Ready(self.computed(key, result)),
            _ => Poll::Pending,
        }
    }
}

/// The error of a full map, which only a map can make.
fn full(key: u8, value: u32) -> InsertError<u8, u32> {
    let stepped = ExpiryMap::<u8, u32>::builder()
        .max_pending(1)
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    map.insert(0, 0).unwrap();
    let mut error = map.insert(1, value).unwrap_err();
    assert_eq!(error.refusal, InsertRefusal::Full);
    error.key = key;
    error
}

fn begin(map: &ExpiryMap<u8, u32>, key: u8) -> Caller {
    let cell = Arc::new(Mutex::new(None));
    let (map, result) = (map.clone(), Arc::clone(&cell));
    let compute = poll_fn(move |_| match result.lock().unwrap().take() {
        Some(result) => Poll::Ready(result),
        None => Poll::Pending,
    });
    Caller {
        key,
        state: State::Begins,
        result: None,
        cell,
        future: Box::pin(async move { map.entry(key).or_compute(|| compute).await }),
        wakes: Wakes::new(),
        woken: 0,
    }
}

fn run(most: usize, calls: &[Call]) {
    let stepped: SteppedMap<u8, u32> = ExpiryMap::builder()
        .shards(1)
        .stripes(1)
        .max_pending(most)
        .build_stepped(1, |_, _| ())
        .unwrap();
    let map = stepped.map();
    let mut model = Model {
        most,
        entries: BTreeMap::new(),
        callers: BTreeMap::new(),
    };
    for (number, call) in calls.iter().enumerate() {
        let value = number as u32;
        let chosen = |model: &Model, which: usize| {
            let count = model.callers.len().max(1);
            model.callers.keys().nth(which % count).copied()
        };
        match *call {
            Call::Begin(key) => {
                model.callers.insert(number, begin(&map, key));
            }
            Call::End(which, succeeds) => {
                let result = if succeeds { Ok(value) } else { Err(value) };
                if let Some(caller) = chosen(&model, which) {
                    let caller = model.callers.get_mut(&caller).unwrap();
                    caller.result = Some(result);
                    *caller.cell.lock().unwrap() = Some(result);
                }
            }
            Call::Drop(which) => {
                if let Some(caller) = chosen(&model, which) {
                    let caller = model.callers.remove(&caller).unwrap();
                    if caller.state == State::Computes {
                        model.end_flight(caller.key, || State::Begins);
                    }
                }
            }
            Call::Insert(key) => {
                let room = model.entries.contains_key(&key) || model.entries.len() < most;
                assert_eq!(map.insert(key, value).is_ok(), room);
                if room {
                    model.entries.insert(key, value);
                }
            }
            Call::Remove(key) => {
                assert_eq!(map.remove(&key).value(), model.entries.remove(&key));
            }
        }
        // Every caller is polled, in order: one that has failed lets a later one compute.
        let numbers: Vec<usize> = model.callers.keys().copied().collect();
        for number in numbers {
            let expected = model.poll(number);
            let caller = model.callers.get_mut(&number).unwrap();
            let wakes = Arc::clone(&caller.wakes);
            let mut polled = poll(&mut caller.future, &wakes);
            if polled.is_pending() && wakes.count() > caller.woken {
                // It gave the runtime a turn, with a wake-up for itself.
                caller.woken += 1;
                polled = poll(&mut caller.future, &wakes);
            }
            assert_eq!(polled, expected, "after {call:?}");
            if expected.is_ready() {
                model.callers.remove(&number);
            }
            for caller in model.callers.values() {
                assert_eq!(caller.wakes.count(), caller.woken, "after {call:?}");
            }
        }
        for key in 0..KEYS {
            assert_eq!(map.get(&key), model.entries.get(&key).copied());
        }
    }
}

fn call() -> impl Strategy<Value = Call> {
    let key = || 0..KEYS;
    prop_oneof![
        8 => key().prop_map(Call::Begin),
        5 => (0..20_usize, any::<bool>()).prop_map(|(which, succeeds)| Call::End(which, succeeds)),
        3 => (0..20_usize).prop_map(Call::Drop),
        1 => key().prop_map(Call::Insert),
        4 => key().prop_map(Call::Remove),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn single_flight_answers_as_its_model(
        most in 1_usize..5,
        calls in prop::collection::vec(call(), 1..80),
    ) {
        run(most, &calls);
    }
}
