//! A server on threads of its own, whose delays are timers, too.

use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use tourbillon::{Shutdown, Timer};

use crate::client::{Request, patience};

/// The counters of the server.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Served {
    pub(crate) asked: u64,
    pub(crate) answered: u64,
}

/// Returns how long an answer takes, or `None` for a lost answer. Of a hundred requests one is
/// never answered, one is answered too late, and one is lost at its first attempt. All others are
/// answered within 20 ms.
fn delay(request: Request) -> Option<Duration> {
    match (request.id % 100, request.attempt) {
        (0, _) | (2, 1) => None,
        (1, 1) => Some(patience(1) * 3 / 2),
        (id, _) => Some(Duration::from_millis(1 + id % 20)),
    }
}

/// Answers requests until all senders are gone, and then the remaining requests.
pub(crate) fn serve(requests: &Receiver<Request>, answers: &Sender<u64>) -> Result<Served, String> {
    let timer = Timer::new().map_err(|error| error.to_string())?;
    let mut served = Served::default();
    for request in requests {
        served.asked += 1;
        let Some(delay) = delay(request) else {
            continue;
        };
        let answers = answers.clone();
        let answer = move || {
            let _ = answers.send(request.id);
        };
        let _ = timer
            .after(delay, answer)
            .map_err(|error| error.to_string())?;
        served.answered += 1;
    }
    let limit = Duration::from_secs(10);
    let report = timer.shutdown(Shutdown::Drain { limit }).wait();
    let report = report.map_err(|error| error.to_string())?;
    served.answered -= report.handed_back.len() as u64;
    Ok(served)
}
