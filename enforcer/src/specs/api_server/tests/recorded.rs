//! What a real API server answered.

use super::*;
use crate::{
    recorded::{self, Recorded},
    specs::fake_api::Streams,
};

/// What a real one answered: a list, the same pods in a watch, and to a question for a list in a watch an error, as its etcd is
/// too old for that.
#[tokio::test]
async fn a_real_servers_answers_are_read_alike_from_its_list_and_its_watch() {
    let recorded = Recorded::new();
    let (api, mut feed) = serve().await;
    feed.node = String::from("guest");
    let reading = Reading::whole(&feed).await;
    assert_eq!(reading.shown(), []);
    for line in recorded.text("watch").lines() {
        api.say(line);
    }
    reading.until("the watch's pods", || reading.shown().len() == recorded::SHOWN.len()).await;
    assert_eq!(recorded::shown(&pods(&reading.shared.since(None).unwrap())), recorded::SHOWN);

    let (api, mut feed) = serve().await;
    feed.node = String::from("guest");
    api.repeat(recorded.text("list"), recorded.text("stream"));
    api.set_streams(Streams::Given);
    let reading = Reading::whole(&feed).await;
    assert_eq!(recorded::shown(&pods(&reading.shared.since(None).unwrap())), recorded::SHOWN);
    let streams = api.asked().iter().filter(|asked| asked.is_stream()).count();
    // It may pass, so it is asked twice.
    assert_eq!((streams, api.asked_for(false).len(), reading.shared.dropped()), (2, 1, 0));
}
