//! The page as browsers and programs ask for it, without a server.

mod access;
mod actions;
mod pages;
mod programs;
mod stores;
mod support;
