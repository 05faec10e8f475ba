//! What stands before each request: how many there may be, where they come from, and who sends them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, OriginalUri, Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use subtle::ConstantTimeEq;

use crate::access::Access;
use crate::page::Shared;

/// The most bytes of a form, or of an order as JSON.
const BODY: usize = 64 * 1024;

/// The cookie with the token that forms must repeat.
const COOKIE: &str = "tourbillon_csrf";

/// The headers of each answer. Nothing is loaded from elsewhere, no other site may frame the page,
/// and no browser guesses types.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// What a handler knows of its request.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    /// Where the router is nested, without a slash at the end.
    pub(crate) base: String,
    pub(crate) access: Access,
    /// The token that forms must repeat.
    pub(crate) token: String,
}

/// How many requests there may be.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: f64,
    state: Mutex<(f64, Instant)>,
}

impl Rate {
    pub(crate) fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second.max(1));
        Rate {
            per_second,
            state: Mutex::new((2.0 * per_second, Instant::now())),
        }
    }

    fn may(&self, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let gained = now.saturating_duration_since(state.1).as_secs_f64() * self.per_second;
        let rest = (state.0 + gained).min(2.0 * self.per_second);
        let may = rest >= 1.0;
        *state = (if may { rest - 1.0 } else { rest }, state.1.max(now));
        may
    }
}

/// Puts the guards around all routes.
pub(crate) fn around(router: Router<Arc<Shared>>, shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    router
        .layer(DefaultBodyLimit::max(BODY))
        .layer(middleware::from_fn_with_state(Arc::clone(shared), guard))
}

async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    shared.begin_samples();
    let (mut parts, body) = request.into_parts();
    let mut response = match admit(&shared, &parts) {
        Err(refused) => refused,
        Ok(visit) => {
            let token = needs_cookie(&parts).then(|| cookie(&visit));
            parts.extensions.insert(visit);
            let mut response = next.run(Request::from_parts(parts, body)).await;
            if let Some(Ok(cookie)) = token.map(HeaderValue::try_from) {
                response.headers_mut().append(header::SET_COOKIE, cookie);
            }
            response
        }
    };
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    // No cache may keep a page: it is for this user, and it changes each second. Assets set their own header.
    let cache = response.headers_mut().entry(header::CACHE_CONTROL);
    cache.or_insert(HeaderValue::from_static("no-store"));
    response
}

fn admit(shared: &Shared, parts: &Parts) -> Result<Visit, Response> {
    let path = parts.uri.path();
    let is_asset = path.starts_with("/assets/");
    let is_probe = matches!(path, "/healthz" | "/readyz");
    if !shared.hosts.is_empty() && !names_host(&shared.hosts, parts) {
        return Err(refused(
            "this page answers by its own host name only: see Page::hosts",
        ));
    }
    if parts.method != Method::GET
        && parts.method != Method::HEAD
        && !is_same_origin(&parts.headers)
    {
        return Err(refused("the request comes from another site"));
    }
    let access = shared.access_of(parts).ok_or_else(|| {
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the check of your rights has failed\n",
        )
            .into_response()
    })?;
    if !access.may_read() && !is_asset && !is_probe {
        if access.must_sign_in() {
            let ask = [(
                header::WWW_AUTHENTICATE,
                "Basic realm=\"tourbillon\", charset=\"UTF-8\"",
            )];
            return Err((
                StatusCode::UNAUTHORIZED,
                ask,
                "give a user and the password\n",
            )
                .into_response());
        }
        return Err(refused("you may not see this page"));
    }
    // Behind the check of rights: who may not read must not take the turns of those who may.
    if !is_asset && !is_probe && !shared.rate.may(Instant::now()) {
        let later = [(header::RETRY_AFTER, "1")];
        let words = "too many requests: try again in a second\n";
        return Err((StatusCode::TOO_MANY_REQUESTS, later, words).into_response());
    }
    let original = parts.extensions.get::<OriginalUri>();
    let original = original.map_or(path, |OriginalUri(uri)| uri.path());
    let base = original.strip_suffix(path).unwrap_or(original);
    Ok(Visit {
        base: base.trim_end_matches('/').to_owned(),
        access,
        token: token_of(&parts.headers).unwrap_or_else(fresh_token),
    })
}

fn refused(why: &'static str) -> Response {
    (StatusCode::FORBIDDEN, format!("{why}\n")).into_response()
}

fn names_host(hosts: &[String], parts: &Parts) -> bool {
    let header = parts
        .headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let Some(host) = header.or_else(|| parts.uri.authority().map(|host| host.as_str())) else {
        return false;
    };
    // An IPv6 address stands in brackets, and has colons of its own.
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
}

/// Whether a request that changes something comes from this page, or from a program. Browsers say
/// where requests come from, and programs do not.
fn is_same_origin(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return matches!(site.as_bytes(), b"same-origin" | b"none");
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let origin = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"));
    matches!((origin, host), (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host))
}

fn token_of(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies
        .filter_map(|cookies| cookies.to_str().ok())
        .flat_map(|cookies| cookies.split(';'));
    let cookies = cookies.filter_map(|cookie| cookie.trim().split_once('='));
    let mut found = cookies.filter(|(name, _)| *name == COOKIE);
    // A cookie of another page on this host may have the name, and stand first.
    let is_token =
        |token: &str| token.len() == 32 && token.bytes().all(|digit| digit.is_ascii_hexdigit());
    let (_, token) = found.find(|(_, token)| is_token(token))?;
    Some(token.to_owned())
}

fn needs_cookie(parts: &Parts) -> bool {
    let is_page =
        !parts.uri.path().starts_with("/assets/") && !parts.uri.path().starts_with("/api/");
    is_page && parts.method == Method::GET && token_of(&parts.headers).is_none()
}

fn cookie(visit: &Visit) -> String {
    let path = if visit.base.is_empty() {
        "/"
    } else {
        &visit.base
    };
    format!(
        "{COOKIE}={}; Path={path}; HttpOnly; SameSite=Strict",
        visit.token
    )
}

fn fresh_token() -> String {
    let mut bytes = [0; 16];
    // Without random bytes there is no token that nobody can guess, so no form is accepted.
    match getrandom::fill(&mut bytes) {
        Ok(()) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        Err(_) => String::new(),
    }
}

/// Checks the token of a form against that of the cookie.
pub(crate) fn is_token(visit: &Visit, headers: &HeaderMap, sent: &str) -> bool {
    // A token that was made for this request is in no form yet.
    token_of(headers).is_some() && bool::from(visit.token.as_bytes().ct_eq(sent.as_bytes()))
}

/// Returns the user of a request with this password, by the scheme `Basic` of HTTP. The name may be
/// any; only the password is checked, in a time that does not depend on where it is wrong. `None` if
/// there is none, or another one.
///
/// The password crosses the network as it is, so use TLS, or 127.0.0.1.
///
/// # Examples
///
/// ```
/// use tourbillon_web::{Access, Page, basic_user};
///
/// let page = Page::new().access(|request| match basic_user(request, "correct horse") {
///     Some(user) => Access::full(user),
///     None => Access::sign_in(),
/// });
/// ```
#[must_use]
pub fn basic_user(request: &Parts, password: &str) -> Option<String> {
    let header = request.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, text) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(BASE64_STANDARD.decode(text.trim()).ok()?).ok()?;
    let (user, given) = text.split_once(':')?;
    let is_right = bool::from(given.as_bytes().ct_eq(password.as_bytes()));
    (is_right && !password.is_empty()).then(|| user.to_owned())
}

/// The visit of a request, which the guard has left.
pub(crate) type Visitor = Extension<Visit>;

/// An answer that has no page.
pub(crate) fn plain(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_of_another_page_hides_no_token() {
        let token = "0123456789abcdef0123456789abcdef";
        let found = |cookies: &[String]| {
            let mut headers = HeaderMap::new();
            for cookie in cookies {
                headers.append(header::COOKIE, cookie.parse().unwrap());
            }
            token_of(&headers)
        };
        let own = format!("a=b; {COOKIE}={token}");
        let other = format!("{COOKIE}=another page");
        assert_eq!(found(&[]), None);
        assert_eq!(found(std::slice::from_ref(&other)), None);
        assert_eq!(found(std::slice::from_ref(&own)).as_deref(), Some(token));
        assert_eq!(found(&[format!("{other}; {own}")]).as_deref(), Some(token));
        assert_eq!(found(&[other, own]).as_deref(), Some(token));
    }
}
