//! `ExpiryMap`: deadlines, answers, delivery, groups, and the end of a map.

mod batches;
mod calls;
mod channel;
mod deadlines;
mod end;
mod groups;
mod toucher;
