//! The doorbell: a connection of its own that listens to the announcements of near timers.

use tourbillon_postgres::Heard;

use super::failure::of_connection;
use super::link::Settings;
use crate::store::{Notification, NotificationListener, Subscription};
use crate::sync::Arc;

/// Listens until the result is dropped. Without a thread it is to be asked again.
pub(super) fn start(settings: &Settings, listener: NotificationListener) -> Option<Subscription> {
    // The functions of a schema notify the channel of its name.
    let (channel, limit) = (settings.schema.name(), settings.statement_limit);
    let listener = Arc::new(listener);
    let hears = Arc::clone(&listener);
    let heard = move |heard: Heard<'_>| match heard {
        Heard::Open => hears(Notification::Open),
        Heard::Notified(payload) => hears(Notification::Ring(payload)),
        Heard::Lost(why) => hears(Notification::Lost(&of_connection(why.clone()))),
        _ => {}
    };
    match settings.connector.listen(channel, limit, heard) {
        Ok(listening) => Some(Subscription::new(move || drop(listening))),
        Err(why) => {
            listener(Notification::Lost(&of_connection(why)));
            None
        }
    }
}
