//! What a process remembers of its nodes, to see that a database is older than it was: restored
//! from a backup, or emptied.
//!
//! A beat that was confirmed can't be missing later, unless the server may lose what it has
//! confirmed. A crash of a server with `synchronous_commit = off` loses the last moments, and so
//! does the failover to a standby that lags. Both are meant to go on by themselves. So a *loss* of
//! some span is admitted there, and the rest is an older database.
//!
//! - **BEATS-1** The *least* number of a node is the greatest one that was confirmed before a loss
//!   could begin. A loss ends after the last confirmed beat was sent. So the least number was
//!   confirmed, at the latest, the span before that beat was sent. Without a span it is the last
//!   one. An outage in between moves nothing.
//! - **BEATS-2** A row whose number is less than the least one is of an older database, also if it
//!   is marked as gone. So is a row that is missing, if there is a least number. The row of a node
//!   stays for a day after the node was declared gone.
//! - **BEATS-3** A beat increments no number that is less, so an older database never catches up.
//! - **BEATS-4** From then on calls of this process are refused, until a beat or a poll of the node
//!   finds the right database, or the node has ended.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::time::StoreTime;
use super::{Epoch, StoreError};
use crate::sync::Mutex;

/// How long the row of a node that is gone is kept at least.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// What to do, for all errors of this kind.
pub(crate) const REMEDY: &str =
    "stop all processes that use it, put the right one in its place, and start them again";

/// The confirmed beats of the nodes of a process.
#[derive(Debug)]
pub(crate) struct Beats {
    /// The confirmed commits of so long a time may be lost.
    loss: Duration,
    nodes: Mutex<BTreeMap<Epoch, Confirmed>>,
}

/// The confirmed beats of a node.
#[derive(Debug)]
struct Confirmed {
    /// The numbers, and when they were confirmed. The first one is the least one, as soon as it can
    /// be it, and the last one is the greatest.
    beats: VecDeque<(i64, Instant)>,
    /// When the last of the beats was sent.
    sent: Instant,
    /// The same by the store's clock.
    at: StoreTime,
    /// Why the database is older, if the last beat or poll has found that.
    older: Option<String>,
}

/// The row of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FoundRow {
    pub(crate) beat: i64,
    pub(crate) gone: bool,
}

impl Confirmed {
    fn least(&self, loss: Duration) -> Option<i64> {
        let (number, at) = self.beats.front()?;
        self.is_before(*at, loss).then_some(*number)
    }

    /// Whether a loss has begun after this moment, if there was one.
    fn is_before(&self, at: Instant, loss: Duration) -> bool {
        // A loss that is longer than any time has no such moment.
        let end = at.checked_add(loss);
        loss.is_zero() || end.is_some_and(|end| end <= self.sent)
    }

    /// Forgets what is before the least one.
    fn forget(&mut self, loss: Duration) {
        while let Some((_, second)) = self.beats.get(1) {
            if !self.is_before(*second, loss) {
                return;
            }
            self.beats.pop_front();
        }
    }

    fn is_older(&mut self, why: &str) -> StoreError {
        let why = format!(
            "{why}: the database is older than it was, for instance restored from a backup; {REMEDY}"
        );
        self.older = Some(why.clone());
        StoreError::Replaced(why)
    }

    fn went_back(&mut self, least: i64, to: i64) -> StoreError {
        self.is_older(&format!(
            "the beats of this node have gone back to {to}, after {least} was confirmed"
        ))
    }
}

impl Beats {
    /// `loss`: the confirmed commits of so long a time may be lost.
    pub(crate) fn new(loss: Duration) -> Self {
        Beats {
            loss,
            nodes: Mutex::default(),
        }
    }

    /// The least number that the row of a node may have. Nothing is known of other nodes.
    pub(crate) fn least(&self, epoch: Epoch) -> i64 {
        let nodes = self.nodes.lock();
        let least = nodes.get(&epoch).and_then(|node| node.least(self.loss));
        least.unwrap_or(i64::MIN)
    }

    /// A node has joined, now or before, and this is the number of its row.
    pub(crate) fn joined(
        &self,
        epoch: Epoch,
        beat: i64,
        sent: Instant,
        now: Instant,
        at: StoreTime,
    ) -> Result<(), StoreError> {
        if self.nodes.lock().contains_key(&epoch) {
            return self.seen(epoch, Some(beat));
        }
        self.confirmed(epoch, beat, sent, now, at);
        Ok(())
    }

    /// A beat was confirmed now. The store's clock has shown `at`.
    pub(crate) fn confirmed(
        &self,
        epoch: Epoch,
        beat: i64,
        sent: Instant,
        now: Instant,
        at: StoreTime,
    ) {
        let mut nodes = self.nodes.lock();
        let node = nodes.entry(epoch).or_insert_with(|| Confirmed {
            beats: VecDeque::new(),
            sent,
            at,
            older: None,
        });
        // Numbers that a loss has undone are counted again. The greatest one of them was confirmed
        // all the same.
        let greatest = node.beats.back().map_or(i64::MIN, |(last, _)| *last);
        node.beats.push_back((beat.max(greatest), now));
        (node.sent, node.at, node.older) = (sent, at, None);
        node.forget(self.loss);
    }

    /// A beat has found no row that it may increment.
    pub(crate) fn found(
        &self,
        epoch: Epoch,
        row: Option<FoundRow>,
        at: StoreTime,
    ) -> Result<(), StoreError> {
        let mut nodes = self.nodes.lock();
        let Some(node) = nodes.get_mut(&epoch) else {
            return Ok(());
        };
        match (node.least(self.loss), row) {
            (Some(least), Some(row)) if row.beat < least => {
                return Err(node.went_back(least, row.beat));
            }
            (Some(least), None) if at < node.at + KEPT => {
                let why = format!("the row of this node is not there, after beat {least}");
                return Err(node.is_older(&why));
            }
            (_, Some(FoundRow { gone: false, .. })) => {
                let why = "the row of the node was another one a moment ago".to_owned();
                return Err(StoreError::Unavailable(why));
            }
            _ => {}
        }
        // It was declared gone.
        nodes.remove(&epoch);
        Ok(())
    }

    /// A poll has read this number in the node's row, which is not there if the node is gone.
    pub(crate) fn seen(&self, epoch: Epoch, beat: Option<i64>) -> Result<(), StoreError> {
        let mut nodes = self.nodes.lock();
        let Some(node) = nodes.get_mut(&epoch) else {
            return Ok(());
        };
        match (node.least(self.loss), beat, &node.older) {
            (Some(least), Some(beat), _) if beat < least => Err(node.went_back(least, beat)),
            (_, None, Some(why)) => Err(StoreError::Replaced(why.clone())),
            (_, None, None) => Ok(()),
            (_, Some(_), _) => {
                node.older = None;
                Ok(())
            }
        }
    }

    /// Whether no node of this process has found an older database.
    pub(crate) fn are_right(&self) -> Result<(), StoreError> {
        let nodes = self.nodes.lock();
        let older = nodes.values().find_map(|node| node.older.as_ref());
        older.map_or(Ok(()), |why| Err(StoreError::Replaced(why.clone())))
    }

    /// A node has left, or tries to. It beats no more.
    pub(crate) fn ended(&self, epoch: Epoch) {
        self.nodes.lock().remove(&epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Epoch = Epoch(7);
    const NOW: StoreTime = StoreTime::from_micros(1_790_000_000_000_000);
    const LOSS: Duration = Duration::from_secs(15);

    /// Beats of a process, one each three seconds.
    struct Node {
        beats: Beats,
        now: Instant,
    }

    impl Node {
        fn new(loss: Duration) -> Self {
            Node {
                beats: Beats::new(loss),
                now: Instant::now(),
            }
        }

        /// A beat whose answer comes at once.
        fn beat(&mut self, beat: i64) {
            self.now += Duration::from_secs(3);
            self.beats.confirmed(ME, beat, self.now, self.now, NOW);
        }

        fn least(&self) -> i64 {
            self.beats.least(ME)
        }

        fn finds(&self, beat: i64, gone: bool) -> Result<(), StoreError> {
            self.beats.found(ME, Some(FoundRow { beat, gone }), NOW)
        }
    }

    fn after(beats: i64, loss: Duration) -> Node {
        let mut node = Node::new(loss);
        for beat in 0..=beats {
            node.beat(beat);
        }
        node
    }

    fn is_replaced(result: Result<(), StoreError>) {
        let error = result.expect_err("it is older");
        assert!(
            matches!(&error, StoreError::Replaced(why) if why.contains("older")),
            "{error:?}"
        );
    }

    #[test]
    fn nothing_confirmed_may_be_missing_where_nothing_is_lost() {
        for gone in [false, true] {
            let node = after(20, Duration::ZERO);
            assert_eq!(node.least(), 20);
            is_replaced(node.finds(19, gone));
            // It stays one.
            is_replaced(node.finds(19, gone));
            is_replaced(node.finds(0, gone));
        }
        assert_eq!(after(20, Duration::ZERO).finds(20, true), Ok(()));
    }

    #[test]
    fn a_loss_of_the_span_is_admitted_and_no_longer_one() {
        let mut node = after(20, LOSS);
        assert_eq!(node.least(), 15);
        assert_eq!(node.beats.seen(ME, Some(15)), Ok(()));
        is_replaced(node.beats.seen(ME, Some(14)));
        is_replaced(node.finds(14, true));
        // A failover has undone some. They are counted again, and the least number never falls.
        for beat in 16..=19 {
            node.beat(beat);
            assert!(node.least() >= 16);
        }
        assert_eq!(node.least(), 19);
        assert_eq!(node.beats.nodes.lock()[&ME].beats.len(), 6);
    }

    #[test]
    fn with_a_loss_without_end_no_database_is_older() {
        let node = after(20, Duration::MAX);
        assert_eq!(node.least(), i64::MIN);
        assert_eq!(node.beats.seen(ME, Some(0)), Ok(()));
    }

    #[test]
    fn an_outage_does_not_make_the_last_beats_older_than_they_are() {
        let mut node = after(20, LOSS);
        // An hour later a standby answers that lacks the last moments.
        node.now += Duration::from_secs(3_600);
        assert_eq!(node.least(), 15);
        node.beat(16);
        assert_eq!(node.least(), 20);
    }

    #[test]
    fn an_answer_that_came_late_counts_from_its_arrival() {
        let mut node = Node::new(LOSS);
        let sent = node.now;
        let answered = sent + Duration::from_secs(10);
        node.beats.confirmed(ME, 1, sent, answered, NOW);
        node.now = answered + Duration::from_secs(9);
        node.beat(2);
        assert_eq!(node.least(), i64::MIN);
        node.beat(3);
        assert_eq!(node.least(), 1);
    }

    #[test]
    fn a_row_that_vanishes_within_a_day_is_an_older_database_unless_the_node_is_young() {
        assert_eq!(after(4, LOSS).beats.found(ME, None, NOW), Ok(()));
        is_replaced(after(5, LOSS).beats.found(ME, None, NOW));
        is_replaced(after(0, Duration::ZERO).beats.found(ME, None, NOW));
        for loss in [Duration::ZERO, LOSS] {
            assert_eq!(after(9, loss).beats.found(ME, None, NOW + KEPT), Ok(()));
            let node = after(9, loss);
            node.beats.ended(ME);
            assert_eq!(node.beats.found(ME, None, NOW), Ok(()));
            assert_eq!(Beats::new(loss).found(ME, None, NOW), Ok(()));
            assert_eq!(Beats::new(loss).seen(ME, Some(0)), Ok(()));
        }
    }

    #[test]
    fn an_older_database_is_refused_until_the_right_one_is_back_or_the_node_has_ended() {
        let mut node = after(20, LOSS);
        assert_eq!(node.beats.are_right(), Ok(()));
        is_replaced(node.finds(3, false));
        is_replaced(node.beats.are_right());
        // A poll that shows no row of the node proves nothing.
        is_replaced(node.beats.seen(ME, None));
        assert_eq!(node.beats.seen(ME, Some(20)), Ok(()));
        assert_eq!(node.beats.are_right(), Ok(()));
        is_replaced(node.beats.seen(ME, Some(3)));
        is_replaced(node.beats.are_right());
        node.beat(21);
        assert_eq!(node.beats.are_right(), Ok(()));
        is_replaced(node.beats.found(ME, None, NOW));
        node.beats.ended(ME);
        assert_eq!(node.beats.are_right(), Ok(()));
    }

    #[test]
    fn a_second_join_confirms_nothing() {
        let node = after(20, Duration::ZERO);
        let join = |beat| node.beats.joined(ME, beat, node.now, node.now, NOW);
        assert_eq!(join(20), Ok(()));
        is_replaced(join(0));
        is_replaced(node.beats.are_right());
        assert_eq!(node.least(), 20);
    }

    #[test]
    fn a_row_that_is_right_again_between_two_statements_is_no_end() {
        let node = after(20, LOSS);
        assert!(matches!(
            node.finds(20, false),
            Err(StoreError::Unavailable(_))
        ));
        assert_eq!(node.least(), 15);
    }
}
