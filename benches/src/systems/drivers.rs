//! Peers in other languages, by way of the drivers in `drivers`. Each has the map in front that a
//! user of that language would write.

use crate::foreign::{Driver, Foreign, JavaLibrary, Language};

/// Netty's `HashedWheelTimer` and a `ConcurrentHashMap`. Its tick is ours, 1 ms, and the number of
/// its slots is the default, 512: every tick walks a slot with N / 512 timers, whose rounds it
/// counts down. Tasks run on its one thread.
pub(crate) struct Netty;

/// The JDK's `ScheduledThreadPoolExecutor` and a `ConcurrentHashMap`: a heap in a lock, from which
/// cancelled tasks are removed.
pub(crate) struct Jdk;

/// Go's `time.AfterFunc` and a map in 64 shards with a mutex each. A touch is a `Reset`.
pub(crate) struct Go;

impl Foreign for Netty {
    const DRIVER: Driver = Driver {
        name: "netty",
        about: "Java: Netty's HashedWheelTimer with a tick of 1 ms, ConcurrentHashMap",
        language: Language::Java {
            class: "Netty",
            library: Some(JavaLibrary {
                name: "netty",
                jar: "/usr/share/java/netty-common.jar",
                package: "libnetty-java",
            }),
        },
    };
}

impl Foreign for Jdk {
    const DRIVER: Driver = Driver {
        name: "jdk",
        about: "Java: ScheduledThreadPoolExecutor, ConcurrentHashMap",
        language: Language::Java {
            class: "Jdk",
            library: None,
        },
    };
}

impl Foreign for Go {
    const DRIVER: Driver = Driver {
        name: "go",
        about: "Go: time.AfterFunc and Reset, a map in 64 shards with a mutex each",
        language: Language::Go,
    };
}
