//! The page in a browser: what is live, what can be clicked, and how it looks.

mod browser;
mod clicks;
mod looks;
mod outages;
