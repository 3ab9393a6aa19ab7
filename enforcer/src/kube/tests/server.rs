//! An API server that has the pods and the node that it is given, and answers or fails as it is to.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::{
    kube::{Access, ApiServer},
    network::{Endpoint, Security},
    specs::{ApiServerFeed, HttpsFeed},
};

/// What the fake has, and what was done to it.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a trouble of its own")]
pub(super) struct Server {
    /// By namespace and name.
    pub(super) pods: BTreeMap<String, FakePod>,
    pub(super) has_budget: bool,
    pub(super) may_delete: bool,
    /// The grace period that every request must have.
    pub(super) grace_seconds: u64,
    /// The status of every answer, if it is none that serves.
    pub(super) fails_with: Option<u16>,
    /// How many requests it still refuses for having too much to do.
    pub(super) busy: u32,
    /// The node `n`, as far as is used.
    pub(super) node: Value,
    /// Whether it does what is asked, and closes the connection without an answer.
    pub(super) swallows_answers: bool,
    /// Whether it does what is asked, and never answers.
    pub(super) keeps_answers: bool,
    /// For how long it does nothing that changes a pod.
    pub(super) takes: Duration,
    /// How long after it has done what is asked it answers, and with which status, if not that it is done.
    pub(super) answers_after: Duration,
    pub(super) answers_with: Option<u16>,
    /// What was asked about pods: method and subresource, and the pod's name.
    pub(super) pod_requests: Vec<(String, String)>,
    /// What changed a pod, alike.
    pub(super) done: Vec<(String, String)>,
    /// All that was asked: method and path.
    pub(super) asked: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) struct FakePod {
    uid: String,
    pub(super) controller: Option<&'static str>,
    pub(super) annotations: Value,
    pub(super) is_terminating: bool,
}

/// Long enough that a request with it does not fit into what a way receives that passes nothing on.
fn token() -> String {
    "secret".repeat(1_000)
}

#[derive(Clone)]
pub(super) struct Api(pub(super) Arc<Mutex<Server>>, pub(super) SocketAddr);

impl Api {
    /// Serves until the test ends.
    pub(super) fn serve() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let api = Self(
            Arc::new(Mutex::new(Server { may_delete: true, grace_seconds: 1, ..Server::default() })),
            listener.local_addr().unwrap(),
        );
        let serving = api.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    let api = serving.clone();
                    tokio::spawn(async move {
                        let service = service_fn(|request| api.answer(request));
                        let connection = hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service);
                        // A swallowed answer breaks the connection.
                        drop(connection.await);
                    });
                }
            });
        });
        api
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Server) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    pub(super) fn put(&self, name: &str, uid: &str, controller: Option<&'static str>) {
        let pod = FakePod { uid: uid.to_owned(), controller, annotations: json!({}), is_terminating: false };
        self.change(|server| server.pods.insert(format!("shop/{name}"), pod));
    }

    pub(super) fn done(&self) -> Vec<(String, String)> {
        self.change(|server| server.done.clone())
    }

    pub(super) fn access(&self) -> Access {
        let address = self.1;
        Arc::new(move || {
            let https = HttpsFeed {
                endpoint: Endpoint {
                    client: String::from("kube"),
                    tls: false,
                    host: address.ip().to_string(),
                    port: address.port(),
                    authority: address.to_string(),
                    connect_timeout_ms: 5_000,
                },
                security: Security::default(),
                token: Some(token()),
            };
            Ok(ApiServerFeed { https, base: String::from("/base"), node: String::from("n") })
        })
    }

    /// A client whose process is a thread.
    pub(super) fn server(&self) -> ApiServer {
        ApiServer::in_this_process("n", self.access()).unwrap()
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, std::io::Error> {
        assert_eq!(request.headers()["authorization"], format!("Bearer {}", token()));
        let (method, path) =
            (request.method().clone(), request.uri().path().strip_prefix("/base").unwrap().to_owned());
        let body = request.into_body().collect().await.map_err(std::io::Error::other)?.to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if method != Method::GET {
            tokio::time::sleep(self.change(|server| server.takes)).await;
        }
        let (status, answer, is_swallowed, is_kept, answers_after) = self.change(|server| {
            server.asked.push(format!("{method} {path}"));
            let before = server.done.len();
            let (mut status, answer) = server.answer(&method, &path, &body);
            let has_done = server.done.len() > before;
            if let Some(other) = server.answers_with.filter(|_| has_done) {
                status = StatusCode::from_u16(other).unwrap();
            }
            let answers_after = if has_done { server.answers_after } else { Duration::ZERO };
            let (is_swallowed, is_kept) = (server.swallows_answers, server.keeps_answers);
            (status, answer, is_swallowed && has_done, is_kept && has_done, answers_after)
        });
        tokio::time::sleep(answers_after).await;
        if is_kept || path.ends_with("/pods/silent") {
            std::future::pending::<()>().await;
        }
        if is_swallowed {
            return Err(std::io::Error::other("no answer"));
        }
        let answer = Response::builder().status(status).body(Full::from(answer.to_string()));
        answer.map_err(std::io::Error::other)
    }
}

impl Server {
    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let refused = |status: u16, message: &str| {
            (StatusCode::from_u16(status).unwrap(), json!({"kind": "Status", "message": message}))
        };
        if let Some(status) = self.fails_with {
            return refused(status, "not now");
        }
        if self.busy > 0 {
            self.busy -= 1;
            return refused(429, "too many requests, please try again later");
        }
        if path == "/version" {
            return (StatusCode::OK, json!({"major": "1"}));
        }
        if path == "/api/v1" {
            let resources = json!([
                {"name": "pods"},
                {"name": "pods/eviction", "group": "policy", "version": "v1", "kind": "Eviction"},
            ]);
            return (StatusCode::OK, json!({"resources": resources}));
        }
        if let Some(below) = path.strip_prefix("/api/v1/nodes/") {
            return match below.strip_prefix('n') {
                Some(below) => answer_of_node(&mut self.node, method, below, body),
                None => refused(404, "no such node"),
            };
        }
        let below = path.strip_prefix("/api/v1/namespaces/").unwrap();
        let (namespace, rest) = below.split_once("/pods/").unwrap();
        let (name, subresource) = rest.split_once('/').unwrap_or((rest, ""));
        let request = (format!("{method} {subresource}").trim().to_owned(), name.to_owned());
        self.pod_requests.push(request.clone());
        let Some(pod) = self.pods.get_mut(&format!("{namespace}/{name}")) else {
            return refused(404, "no such pod");
        };
        let is_for = |uid: &Value| uid.as_str() == Some(&pod.uid);
        match (method.as_str(), subresource) {
            ("GET", "") => {
                let owners = pod.controller.map(|kind| json!([{"kind": kind, "controller": true}]));
                let mut metadata = json!({"uid": pod.uid, "annotations": pod.annotations});
                if let Some(owners) = owners {
                    metadata["ownerReferences"] = owners;
                }
                if pod.is_terminating {
                    metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                }
                return (StatusCode::OK, json!({"metadata": metadata, "status": {"phase": "Running"}}));
            }
            ("POST", "eviction") => {
                assert_eq!(body["apiVersion"], "policy/v1");
                assert_eq!(body["deleteOptions"]["gracePeriodSeconds"], self.grace_seconds);
                if !is_for(&body["deleteOptions"]["preconditions"]["uid"]) {
                    return refused(409, "another uid");
                }
                if self.has_budget {
                    let causes = json!({"causes": [{"reason": "DisruptionBudget", "message": "needs 1"}]});
                    let status = json!({"message": "Cannot evict pod", "details": causes});
                    return (StatusCode::TOO_MANY_REQUESTS, status);
                }
            }
            ("DELETE", "") => {
                if !self.may_delete {
                    return refused(403, "pods is forbidden");
                }
                if !is_for(&body["preconditions"]["uid"]) {
                    return refused(409, "another uid");
                }
            }
            ("PATCH", "status") => {
                if !is_for(&body["metadata"]["uid"]) {
                    return refused(409, "another uid");
                }
                assert_eq!(
                    (&body["status"]["phase"], &body["status"]["reason"]),
                    (&json!("Failed"), &json!("Evicted"))
                );
            }
            other => panic!("{other:?} {path}"),
        }
        pod.is_terminating = method != Method::PATCH;
        self.done.push(request);
        (StatusCode::CREATED, json!({}))
    }
}

/// What it answers about the node.
fn answer_of_node(node: &mut Value, method: &Method, below: &str, body: &Value) -> (StatusCode, Value) {
    match (method.as_str(), below) {
        ("GET", "") => return (StatusCode::OK, node.clone()),
        ("PATCH", "") if node["metadata"]["isTaintRefused"] == true => {
            return (StatusCode::FORBIDDEN, json!({"message": "nodes is forbidden"}));
        }
        ("PATCH", "/status") if node["metadata"]["isConditionRefused"] == true => {
            return (StatusCode::FORBIDDEN, json!({"message": "nodes/status is forbidden"}));
        }
        ("PATCH", "") => {
            // So often it changes after it was read.
            let changes = node["metadata"]["changes"].as_u64().unwrap_or_default();
            if changes > 0 || body["metadata"]["resourceVersion"] != node["metadata"]["resourceVersion"] {
                node["metadata"]["changes"] = changes.saturating_sub(1).into();
                return (StatusCode::CONFLICT, json!({}));
            }
            node["spec"]["taints"] = body["spec"]["taints"].clone();
        }
        ("PATCH", "/status") => {
            let patch = &body["status"]["conditions"][0];
            let conditions = node["status"]["conditions"].as_array_mut().unwrap();
            conditions.retain(|condition| condition["type"] != patch["type"]);
            if patch["$patch"] != "delete" {
                conditions.push(patch.clone());
            }
        }
        other => panic!("{other:?}"),
    }
    (StatusCode::OK, json!({}))
}
