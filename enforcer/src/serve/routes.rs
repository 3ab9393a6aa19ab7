//! What both sockets have in common: bounds on requests, and helpful errors.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::Request,
    http::{Method, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::MethodRouter,
};
use serde_json::json;

use super::guarded::{REQUEST_LINE_BYTES, too_long};
use crate::nearest::nearest;

/// The largest body that a request may have.
pub(super) const BODY_BYTES: usize = 16 << 10;

/// A router that lists its paths in the answer to an unknown one.
pub(super) struct Routes<S> {
    router: Router<S>,
    paths: Vec<&'static str>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    pub(super) fn new() -> Self {
        Self { router: Router::new(), paths: Vec::new() }
    }

    pub(super) fn route(mut self, path: &'static str, methods: MethodRouter<S>) -> Self {
        self.paths.push(path);
        Self { router: self.router.route(path, methods), paths: self.paths }
    }

    pub(super) fn with_state(self, state: S) -> Router {
        let paths: Arc<[&'static str]> = self.paths.into();
        let unknown = async move |uri: Uri| unknown(&uri, &paths);
        self.router
            .fallback(unknown)
            .method_not_allowed_fallback(wrong_method)
            .layer(middleware::from_fn(within_bounds))
            .with_state(state)
    }
}

/// An answer with an error text.
pub(super) fn reported(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({"error": error}))).into_response()
}

fn unknown(uri: &Uri, paths: &[&'static str]) -> Response {
    let nearest = nearest(uri.path(), paths.iter().copied());
    let hint = nearest.map_or_else(String::new, |path| format!(": did you mean {path}?"));
    let error = format!("there is no {}{hint}", uri.path());
    (StatusCode::NOT_FOUND, Json(json!({"error": error, "paths": paths}))).into_response()
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    reported(StatusCode::METHOD_NOT_ALLOWED, &format!("{} does not take {method}", uri.path()))
}

/// Refuses requests that are too large.
async fn within_bounds(request: Request, next: Next) -> Response {
    let line_bytes = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if line_bytes > REQUEST_LINE_BYTES {
        return (StatusCode::URI_TOO_LONG, [(header::CONTENT_TYPE, "application/json")], too_long())
            .into_response();
    }
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if length.is_some_and(|length| length.parse().is_ok_and(|bytes: u64| bytes > BODY_BYTES as u64)) {
        let error = format!("the request's body is larger than {BODY_BYTES} bytes");
        return reported(StatusCode::PAYLOAD_TOO_LARGE, &error);
    }
    next.run(request).await
}
