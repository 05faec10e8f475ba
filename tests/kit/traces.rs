//! A subscriber of `tracing` that remembers all spans and events of the process.
//!
//! A subscriber is code of the user. If a span or an event has the field `name` or `queue` with the
//! value of [`panics_at`], the subscriber panics at that call.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber, subscriber};

use crate::quiet;

/// The fields of a span or an event, as text. The message of an event is the field `message`.
pub type Fields = BTreeMap<String, String>;

/// A span, as far as it has come.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its level.
    pub level: Level,
    /// Its target.
    pub target: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its fields, with those that were recorded later.
    pub fields: Fields,
    /// How often it was entered.
    pub entered: usize,
    /// How often it was left.
    pub exited: usize,
    /// Whether nobody has it any more.
    pub is_closed: bool,
    references: usize,
}

/// An event, with the innermost span around it.
#[derive(Clone, Debug)]
pub struct Told {
    /// Its level.
    pub level: Level,
    /// Its target.
    pub target: &'static str,
    /// Its fields, with those that were recorded later.
    pub fields: Fields,
    /// The number of the span that its thread was in.
    pub within: Option<u64>,
    /// The name of its thread.
    pub thread: String,
}

#[derive(Debug, Default)]
struct State {
    spans: Vec<Span>,
    events: Vec<Told>,
}

/// What was told in this process since the first call of [`listen`].
#[derive(Debug, Default)]
pub struct Traces(Mutex<State>);

struct Listener;

static TRACES: OnceLock<Traces> = OnceLock::new();

thread_local! {
    /// The spans that this thread is in.
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Listens to the whole process from now on.
pub fn listen() -> &'static Traces {
    TRACES.get_or_init(|| {
        subscriber::set_global_default(Listener).expect("this is the only subscriber");
        quiet::hush();
        Traces::default()
    })
}

/// The name at whose `call` the subscriber panics: `new_span`, `enter`, `exit`, `try_close` or
/// `event`.
pub fn panics_at(call: &str) -> String {
    format!("the subscriber panics at {call}")
}

/// The number of the span that this thread is in, as the listener has numbered it.
pub fn current() -> Option<u64> {
    STACK.with_borrow(|stack| stack.last().copied())
}

impl Traces {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The spans whose field has this value, with their numbers.
    pub fn spans(&self, field: &str, value: &str) -> Vec<(u64, Span)> {
        let state = self.state();
        let spans = (1..).zip(&state.spans);
        let found = spans.filter(|(_, span)| span.fields.get(field).is_some_and(|it| it == value));
        found.map(|(number, span)| (number, span.clone())).collect()
    }

    /// The events whose field has this value.
    pub fn events(&self, field: &str, value: &str) -> Vec<Told> {
        let state = self.state();
        let events = state.events.iter();
        let found = events.filter(|event| event.fields.get(field).is_some_and(|it| it == value));
        found.cloned().collect()
    }

    /// All events so far.
    pub fn all_events(&self) -> Vec<Told> {
        self.state().events.clone()
    }
}

struct Writer<'a>(&'a mut Fields);

impl Visit for Writer<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        // The `Debug` of a key is code of the user.
        write!(text, "{value:?}").expect("a text takes all");
        self.0.insert(field.name().to_owned(), text);
    }
}

fn panic_if_wanted(fields: &Fields, call: &str) {
    let wanted = panics_at(call);
    let named = [fields.get("name"), fields.get("queue")];
    assert!(
        !named.contains(&Some(&wanted)),
        "{}: at {call}",
        quiet::WANTED
    );
}

impl Listener {
    fn change<R>(&self, id: &Id, change: impl FnOnce(&mut Span) -> R) -> R {
        let mut state = listen().state();
        let index = usize::try_from(id.into_u64() - 1).expect("a short list");
        change(&mut state.spans[index])
    }
}

impl Subscriber for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::new();
        attributes.record(&mut Writer(&mut fields));
        panic_if_wanted(&fields, "new_span");
        let metadata = attributes.metadata();
        let mut state = listen().state();
        state.spans.push(Span {
            level: *metadata.level(),
            target: metadata.target(),
            name: metadata.name(),
            fields,
            entered: 0,
            exited: 0,
            is_closed: false,
            references: 1,
        });
        Id::from_u64(state.spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.change(id, |span| values.record(&mut Writer(&mut span.fields)));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Writer(&mut fields));
        panic_if_wanted(&fields, "event");
        let told = Told {
            level: *event.metadata().level(),
            target: event.metadata().target(),
            fields,
            within: current(),
            thread: std::thread::current().name().unwrap_or_default().to_owned(),
        };
        listen().state().events.push(told);
    }

    fn enter(&self, id: &Id) {
        let fields = self.change(id, |span| span.fields.clone());
        panic_if_wanted(&fields, "enter");
        self.change(id, |span| span.entered += 1);
        STACK.with_borrow_mut(|stack| stack.push(id.into_u64()));
    }

    fn exit(&self, id: &Id) {
        let fields = self.change(id, |span| span.fields.clone());
        STACK.with_borrow_mut(|stack| {
            if stack.last() == Some(&id.into_u64()) {
                stack.pop();
            }
        });
        panic_if_wanted(&fields, "exit");
        self.change(id, |span| span.exited += 1);
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.change(id, |span| span.references += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let (closes, fields) = self.change(&id, |span| {
            span.references -= 1;
            span.is_closed = span.references == 0;
            (span.is_closed, span.fields.clone())
        });
        panic_if_wanted(&fields, "try_close");
        closes
    }
}
