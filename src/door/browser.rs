//! Requests that a browser makes on behalf of a page of the web, and that a door must not answer.

use std::net::{IpAddr, Ipv6Addr};

use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses the requests of other websites. Such a page must not read a door through the browser on the user's own machine:
/// neither as another origin, nor under its own host name that resolves to this machine's address (DNS rebinding), which only a
/// token rules out. `is_page` is whether the request is for a page, to which any website may link.
///
/// # Errors
/// The reason, for the client.
pub(super) fn check_origin(headers: &HeaderMap, is_page: bool, has_token: bool) -> Result<(), String> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(HOST).unwrap_or_default();
    // Browsers do not send the origin of an image request, for example.
    let is_cross_site = !is_page && text(SEC_FETCH_SITE) == Some("cross-site");
    if is_cross_site || text(ORIGIN).is_some_and(|origin| origin != format!("http://{host}")) {
        return Err("refused: the request comes from another website\n".to_owned());
    }
    if !has_token && !is_of_this_machine(host) {
        return Err(format!(
            "the request is for host {host:?}; without a token, use http://127.0.0.1 or http://localhost\n"
        ));
    }
    Ok(())
}

/// Whether a Host header names this machine's loopback: `localhost:8080`, `127.0.0.1`, `[::1]:8080`.
fn is_of_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    match bare {
        Some(name) => name.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback()),
        None => name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()),
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_page_of_the_web_is_refused() {
        let check = |pairs: &[(HeaderName, &'static str)], has_token: bool, passes: bool| {
            assert_eq!(check_origin(&headers(pairs), false, has_token).is_ok(), passes, "{pairs:?} {has_token}");
        };
        let from = |site| [(HOST, "127.0.0.1:8080"), (SEC_FETCH_SITE, site)];
        check(&from("cross-site"), true, false);
        check(&from("same-origin"), false, true);
        check(&from("none"), false, true);
        assert!(check_origin(&headers(&from("cross-site")), true, false).is_ok(), "a link to the page");
        check(&[(HOST, "127.0.0.1:8080")], false, true);
        check(&[(HOST, "localhost:8080")], false, true);
        check(&[(HOST, "[::1]:8080")], false, true);
        check(&[(HOST, "LOCALHOST")], false, true);
        check(&[(HOST, "evil.example:8080")], false, false);
        check(&[(HOST, "10.0.0.7:8080")], false, false);
        check(&[(HOST, "localhost.evil.example")], false, false);
        check(&[], false, false);
        check(&[(HOST, "gpu-box:8080")], true, true);
        check(&[(HOST, "127.0.0.1:8080"), (ORIGIN, "http://127.0.0.1:8080")], false, true);
        check(&[(HOST, "127.0.0.1:8080"), (ORIGIN, "http://127.0.0.1:9090")], false, false);
        check(&[(HOST, "gpu-box:8080"), (ORIGIN, "https://evil.example")], true, false);
    }
}
