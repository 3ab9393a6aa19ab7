//! What hangs with its connections open: the kubelet's Pods API, and the way to the API server.

use enforcer_tests::{
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

use super::{
    MIB,
    acting::{Scene, fill, threshold_bytes},
    specs::{evicting_below, pod_of, serve},
};

#[path = "../../../enforcer/src/network/fake.rs"]
#[expect(dead_code, reason = "the clients' own tests use more of it")]
mod network;

use network::Way;

/// The kill waits for neither, and the API server is asked once when there is a way to it. The kubelet counts as lost by then or
/// soon, and the API server has the specs too.
#[guest_test(daemon)]
fn while_the_kubelet_and_the_way_to_the_api_server_hang_a_pod_is_killed_and_none_is_lost() {
    let mut made = None;
    let mut scene = Scene::reached_by("hanging", &evicting_below(threshold_bytes()), |server| {
        let (way, passing) = Way::to(server).unwrap();
        serve(move || passing);
        let address = way.address();
        made = Some((way, server));
        address
    });
    let (way, server) = made.unwrap();
    let web = scene.pod("web", Some("ReplicaSet"));
    let _other = scene.pod("other", Some("ReplicaSet"));
    let (daemon, mut stream) = scene.start("other");
    wait_until("the other spec", || !pod_of(&daemon, "web")["spec"].is_null());
    assert_eq!(pod_of(&daemon, "other")["spec"]["source"], "podsAPI");
    // It is kept for the next request.
    wait_until("a connection to the API server", || {
        scene.api.asked().iter().any(|asked| asked.target == "/api/v1")
    });
    scene.kubelet.hang();
    way.vanish();
    wait_until("half-open connections", || way.has_vanished());

    let mut filling = fill(&web);
    stream.wait_for_pod("eviction.completed", "shop/web", TIMEOUT).unwrap();
    assert!(!filling.wait().unwrap().success());
    let is_away = |event: &Value| is(event, "degraded.entered") && event["data"]["what"] == "apiServer";
    stream.wait_for("no API server", TIMEOUT, is_away).unwrap();
    assert_eq!(stream.of("eviction.requested").count(), 0);

    way.lead_to(server);
    let requested = stream.wait_for_pod("eviction.requested", "shop/web", TIMEOUT).unwrap();
    assert_eq!(requested["data"]["outcome"], "accepted", "{requested}");
    wait_until("the next source of specs", || {
        let pod = pod_of(&daemon, "other");
        assert_eq!(pod["requestBytes"], 16 * MIB, "{pod}");
        pod["spec"]["source"] == "apiServer" && pod["spec"]["provenance"] == "live"
    });
    assert!(!pod_of(&daemon, "web").is_null());

    scene.api.remove(&web.uid);
    drop(web);
    stream.wait_for_pod("eviction.confirmed", "shop/web", TIMEOUT).unwrap();
    wait_until("the Event", || !scene.events("Evicted").is_empty());
    let events = daemon.events().unwrap();
    let subjects = |kind: &str| -> Vec<&str> {
        let of = events.iter().filter(|event| is(event, kind));
        of.filter_map(|event| event["subject"].as_str()).collect()
    };
    for kind in ["decided", "signalled", "completed", "requested", "confirmed"] {
        assert_eq!(subjects(&format!("eviction.{kind}")), ["shop/web"], "{kind}");
    }
    assert!(!subjects("pod.removed").contains(&"shop/other"), "{events:#?}");
    assert_eq!(scene.evictions(), ["POST /api/v1/namespaces/shop/pods/web/eviction"]);
    assert_eq!(scene.events("Evicted").len(), 1);
    daemon.stop().unwrap();
}
