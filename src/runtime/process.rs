//! The runtime of the process.
//!
//! It starts with the first that is built without another choice, and ends with the process.
//!
//! A forked copy of the process makes one of its own. Since another thread may have had the lock at
//! the fork, a copy has another lock: there is one for each number of forks. A process that came
//! from more forks than that has none, and each scheduler has threads of its own there.

use super::{Runtime, RuntimeBuilder};
use crate::error::BuildError;
use crate::sync::Mutex;
use crate::sync::fork::{Origin, forks};

/// Number of forks up to which a copy has a runtime.
const FORKS: usize = 16;

static RUNTIMES: [Mutex<Option<Runtime>>; FORKS] = [const { Mutex::new(None) }; FORKS];

fn place() -> Option<&'static Mutex<Option<Runtime>>> {
    // From now on forks are noticed.
    let _ = Origin::here();
    RUNTIMES.get(forks() as usize)
}

/// Returns whether there is one that was not shut down.
fn runs(runtime: &Option<Runtime>) -> bool {
    runtime
        .as_ref()
        .is_some_and(|runtime| runtime.threads.is_open())
}

/// Returns the runtime of this process, which starts if it does not run yet. `None` in a copy of
/// too many forks.
pub(crate) fn of_process() -> Result<Option<Runtime>, BuildError> {
    let Some(place) = place() else {
        return Ok(None);
    };
    let mut runtime = place.lock();
    if !runs(&runtime) {
        *runtime = Some(Runtime::builder().build()?);
    }
    Ok(runtime.clone())
}

impl RuntimeBuilder {
    /// Makes this the runtime of the process, on which schedulers, maps and timers run if they are
    /// told nothing else. Call it at the start of `main`. It is never dropped. A forked copy of the
    /// process has a runtime with the default options, unless it calls this, too.
    ///
    /// # Errors
    ///
    /// As for [`build`](Self::build), and [`BuildError::RuntimeRuns`] if it runs already, since
    /// something was built on it or this was called before.
    ///
    /// # Examples
    ///
    /// ```standalone_crate
    /// # use std::time::Duration;
    /// use tourbillon::{BuildError, Runtime, Timer};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = Runtime::builder().workers(4).name("shop").build_global()?;
    /// assert_eq!(runtime.stats().workers, 4);
    ///
    /// let again = Runtime::builder().build_global();
    /// assert!(matches!(again, Err(BuildError::RuntimeRuns)));
    /// let timer = Timer::new()?;
    /// assert_eq!(runtime.stats().instances, 1);
    /// # drop(timer);
    /// # // The next build starts another one.
    /// # runtime.shut_down(Duration::from_secs(60))?;
    /// # let timer = Timer::new()?;
    /// # assert_eq!(runtime.stats().instances, 0);
    /// # drop(timer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn build_global(self) -> Result<Runtime, BuildError> {
        let Some(place) = place() else {
            return self.build();
        };
        let mut runtime = place.lock();
        if runs(&runtime) {
            return Err(BuildError::RuntimeRuns);
        }
        let built = self.build()?;
        *runtime = Some(built.clone());
        Ok(built)
    }
}
