//! What both sockets have in common: bounds on requests, and helpful errors.

use std::{collections::BTreeMap, sync::Arc};

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

/// The most characters of an unknown parameter that an error quotes.
const QUOTED: usize = 32;

/// The parameters of each path that does not check its own.
type Parameters = BTreeMap<&'static str, &'static [&'static str]>;

/// A router that lists its paths in the answer to an unknown one, and the parameters in that to an unknown one.
pub(super) struct Routes<S> {
    router: Router<S>,
    paths: Vec<&'static str>,
    parameters: Parameters,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    pub(super) fn new() -> Self {
        Self { router: Router::new(), paths: Vec::new(), parameters: Parameters::new() }
    }

    /// A path that takes no parameter.
    pub(super) fn route(self, path: &'static str, methods: MethodRouter<S>) -> Self {
        self.with_parameters(path, &[], methods)
    }

    /// A path that takes these parameters.
    pub(super) fn with_parameters(
        mut self,
        path: &'static str,
        parameters: &'static [&'static str],
        methods: MethodRouter<S>,
    ) -> Self {
        self.parameters.insert(path, parameters);
        self.checking(path, methods)
    }

    /// A path that checks its parameters itself, or that takes any, as other programs add some.
    pub(super) fn checking(mut self, path: &'static str, methods: MethodRouter<S>) -> Self {
        self.paths.push(path);
        Self { router: self.router.route(path, methods), ..self }
    }

    pub(super) fn with_state(self, state: S) -> Router {
        let paths: Arc<[&'static str]> = self.paths.into();
        let unknown = async move |uri: Uri| unknown(&uri, &paths);
        let parameters = Arc::new(self.parameters);
        let known = move |request: Request, next: Next| {
            let wrong = unknown_parameter(&parameters, request.uri());
            async move {
                match wrong {
                    Some(wrong) => wrong,
                    None => next.run(request).await,
                }
            }
        };
        self.router
            .fallback(unknown)
            .method_not_allowed_fallback(wrong_method)
            .layer(middleware::from_fn(known))
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

/// The answer to a request with a parameter that its path does not take.
fn unknown_parameter(parameters: &Parameters, uri: &Uri) -> Option<Response> {
    let known = *parameters.get(uri.path())?;
    let pairs = uri.query()?.split('&').filter(|pair| !pair.is_empty());
    let mut names = pairs.map(|pair| pair.split('=').next().unwrap_or_default());
    let name: String = names.find(|name| !known.contains(name))?.chars().take(QUOTED).collect();
    let there_are = if known.is_empty() { String::from("it takes none") } else { known.join(", ") };
    let error = format!("{name:?} is not a parameter of {}: {there_are}", uri.path());
    Some((StatusCode::BAD_REQUEST, Json(json!({"error": error, "parameters": known}))).into_response())
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
