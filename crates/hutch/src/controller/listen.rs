//! The two plain HTTP servers: `/metrics`, and the probes.

use anyhow::Context;
use axum::Router;
use axum::extract::RawQuery;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header;
use hutch_controller::Metrics;
use hutch_serve::Listener;

use super::flags;
use crate::address::BindAddress;

/// Binds an address in the syntax of Go programs: `HOST:PORT`, `:PORT` for every address, `0` or nothing for none.
pub(super) async fn bind(flag: &str, address: &str) -> anyhow::Result<Option<Listener>> {
    if !flags::is_on(address) {
        return Ok(None);
    }
    let named = || format!("--{flag}={address}");
    let parsed = BindAddress::parse(address).map_err(anyhow::Error::msg).with_context(named)?;
    Ok(Some(Listener::over(parsed.bind().await.with_context(named)?)?))
}

pub(super) fn metrics(metrics: Metrics) -> Router {
    Router::new().route(
        "/metrics",
        get(move || {
            let metrics = metrics.clone();
            async move { ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.text()) }
        }),
    )
}

/// Serves both probes, which report that the process answers. Leadership is not a matter of health.
pub(super) fn probes() -> Router {
    let probe = |name: &'static str| {
        get(move |RawQuery(query): RawQuery| async move {
            let verbose =
                query.unwrap_or_default().split('&').any(|pair| pair.split('=').next() == Some("verbose"));
            let text =
                if verbose { format!("[+]{name} ok\nhealthz check passed\n") } else { "ok".to_owned() };
            ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
        })
    };
    let mut router = Router::new();
    for name in ["healthz", "readyz"] {
        for path in [format!("/{name}"), format!("/{name}/"), format!("/{name}/{name}")] {
            router = router.route(&path, probe(name));
        }
    }
    router
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn asked(router: Router, path: &str) -> (u16, String) {
        let request = http::Request::get(path).body(axum::body::Body::empty()).unwrap();
        let answer = router.oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        (status, String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
    }

    #[tokio::test]
    async fn probes_answer_with_and_without_verbose() {
        for path in ["/healthz", "/readyz", "/healthz/", "/readyz/readyz"] {
            assert_eq!(asked(probes(), path).await, (200, "ok".to_owned()), "{path}");
        }
        assert_eq!(asked(probes(), "/readyz?verbose").await.1, "[+]readyz ok\nhealthz check passed\n");
        assert_eq!(asked(probes(), "/healthz/no-such-check").await.0, 404);
        assert_eq!(asked(probes(), "/metrics").await.0, 404);
    }

    #[tokio::test]
    async fn addresses_are_parsed_as_by_go() {
        for none in ["", "0"] {
            assert!(bind("x", none).await.unwrap().is_none());
        }
        for some in [":0", "127.0.0.1:0", "localhost:0"] {
            let address = bind("x", some).await.unwrap().unwrap().address();
            assert_eq!(address.ip().is_unspecified(), some == ":0", "{some}");
        }
        let taken = bind("x", "127.0.0.1:0").await.unwrap().unwrap();
        let error = bind("metrics-bind-address", &taken.address().to_string()).await.err().unwrap();
        let line = format!("{error:#}");
        assert!(line.contains("--metrics-bind-address") && line.contains("in use"), "{line}");
    }
}
