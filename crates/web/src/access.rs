//! Who may do what.

use std::fmt;
use std::str::FromStr;

/// Something that a user of the page can do to timers.
///
/// # Examples
///
/// ```
/// use tourbillon_web::Action;
///
/// assert_eq!(Action::RunNow.to_string(), "run-now");
/// assert_eq!("cancel".parse(), Ok(Action::Cancel));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Action {
    /// Stop a queue: its timers wait until it is resumed.
    Pause,
    /// Let a queue go on.
    Resume,
    /// Make a timer due now.
    RunNow,
    /// Give a timer another due time.
    Move,
    /// Cancel a timer.
    Cancel,
    /// Make dead letters timers again, due now.
    Revive,
    /// Delete dead letters.
    Discard,
}

impl Action {
    /// All actions.
    pub const ALL: [Action; 7] = [
        Action::Pause,
        Action::Resume,
        Action::RunNow,
        Action::Move,
        Action::Cancel,
        Action::Revive,
        Action::Discard,
    ];

    /// The action as one word in lower case, as in addresses and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Action::Pause => "pause",
            Action::Resume => "resume",
            Action::RunNow => "run-now",
            Action::Move => "move",
            Action::Cancel => "cancel",
            Action::Revive => "revive",
            Action::Discard => "discard",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Action::ALL
            .into_iter()
            .find(|action| action.as_str() == text);
        found.ok_or_else(|| {
            let all = Action::ALL.map(Action::as_str).join(", ");
            format!("there is no action {text:?}: the actions are {all}")
        })
    }
}

/// What one request may do, and who sends it. Returned by the closure of
/// [`Page::access`](crate::Page::access).
///
/// # Examples
///
/// ```
/// use tourbillon_web::{Access, Action};
///
/// let support = Access::only("anna", [Action::RunNow, Action::Revive]);
/// assert!(support.may(Action::Revive) && !support.may(Action::Cancel));
/// assert_eq!(support.user(), Some("anna"));
/// assert!(!Access::read_only().may(Action::Pause));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    user: Option<String>,
    rights: Rights,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Rights {
    SignIn,
    None,
    Read(Vec<Action>),
}

impl Access {
    /// May read, and change nothing.
    #[must_use]
    pub fn read_only() -> Self {
        Access {
            user: None,
            rights: Rights::Read(Vec::new()),
        }
    }

    /// May do everything.
    #[must_use]
    pub fn full(user: impl Into<String>) -> Self {
        Self::only(user, Action::ALL)
    }

    /// May read, and do these actions.
    #[must_use]
    pub fn only(user: impl Into<String>, actions: impl IntoIterator<Item = Action>) -> Self {
        Access {
            user: Some(user.into()),
            rights: Rights::Read(actions.into_iter().collect()),
        }
    }

    /// May nothing: the answer is 403.
    #[must_use]
    pub fn denied() -> Self {
        Access {
            user: None,
            rights: Rights::None,
        }
    }

    /// Must give a user and a password first: the answer is 401, and a browser asks for them. See
    /// [`basic_user`](crate::basic_user).
    #[must_use]
    pub fn sign_in() -> Self {
        Access {
            user: None,
            rights: Rights::SignIn,
        }
    }

    /// Returns whether this action may be done.
    #[must_use]
    pub fn may(&self, action: Action) -> bool {
        matches!(&self.rights, Rights::Read(actions) if actions.contains(&action))
    }

    /// Returns the user, if one is known.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    pub(crate) fn may_read(&self) -> bool {
        matches!(self.rights, Rights::Read(_))
    }

    pub(crate) fn must_sign_in(&self) -> bool {
        self.rights == Rights::SignIn
    }
}

/// An action that somebody has done on the page. See [`Page::on_action`](crate::Page::on_action).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ActionEvent {
    /// Who did it: the name that [`Page::access`](crate::Page::access) gave.
    pub user: Option<String>,
    /// What was asked for.
    pub action: Action,
    /// The name of the store.
    pub store: String,
    /// What it was done to, in words, such as `pay-by order:7` or `dead letters 3, 4`. Control
    /// characters are escaped.
    pub target: String,
    /// What came of it, in words.
    pub outcome: Result<String, String>,
}

impl fmt::Display for ActionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_deref().unwrap_or("somebody");
        write!(
            f,
            "{}: {} {} {}: ",
            user.escape_debug(),
            self.store,
            self.action,
            self.target
        )?;
        match &self.outcome {
            Ok(done) => f.write_str(done),
            Err(error) => write!(f, "failed: {error}"),
        }
    }
}
