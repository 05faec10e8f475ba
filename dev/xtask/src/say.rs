//! Prints lines as `println!` and `eprintln!` do, which panic if the reader of a pipe has gone. A
//! reader that closed the pipe has seen enough, and the program goes on.

#![allow(unused_macros, reason = "some programs print on one of them only")]

/// Prints a line on stdout.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// Prints a line on stderr.
macro_rules! complain {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// Prints on stderr, without the end of the line.
macro_rules! begin {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($text)*);
    }};
}
