//! What did not end in an eviction: a pod that was rejected, one that was spared, and a feature that is missing.

use enforcer_events::{Payload, eviction::Decision, node::Degraded, pod::PodRejected};

use super::{
    data,
    fold::{Folded, Outcome},
    screen,
    sentence::{rows, trigger},
};
use crate::cli::{
    page::{Page, Style},
    ranked::{because, exclusion, name},
};

/// The first sentence, of such a case.
pub(super) fn sentence(folded: &Folded) -> String {
    let sentence = match folded.kind {
        "rejection" => rejection(folded),
        "degradation" => degradation(folded),
        _ => spared(folded),
    };
    let sentence = sentence.trim().to_owned();
    if sentence.ends_with('.') { sentence } else { sentence + "." }
}

/// The screen of such a case.
pub(super) fn table(folded: &Folded, style: Style) -> String {
    let mut page = Page::new(style);
    page.paragraph(&folded.sentence);
    page.gap();
    let label = if folded.kind == "spared" && folded.decision().is_some() { "eviction" } else { "event" };
    page.field(label, &data::at(folded, style));
    let next = match folded.kind {
        "rejection" => rejected_page(&mut page, folded),
        "degradation" => degraded_page(&mut page, folded),
        _ => spared_page(&mut page, folded),
    };
    for (number, line) in next.iter().enumerate() {
        page.field(if number == 0 { "next" } else { "" }, line);
    }
    page.finish()
}

fn rejected(folded: &Folded) -> Option<&PodRejected> {
    folded.step(|payload| if let Payload::PodRejected(rejected) = payload { Some(rejected) } else { None })
}

/// Whether the pod was admitted later.
fn was_added(folded: &Folded) -> bool {
    folded.step(|payload| matches!(payload, Payload::PodAdded(_)).then_some(())).is_some()
}

fn rejection(folded: &Folded) -> String {
    let Some(rejected) = rejected(folded) else { return String::from("A pod was rejected") };
    let pod = match (&rejected.namespace, &rejected.name) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        _ => String::from("A pod"),
    };
    let was = if rejected.dry_run == Some(true) { "would be rejected (dry run)" } else { "was rejected" };
    let message = rejected.message.trim().trim_end_matches('.');
    let why = match &rejected.reason {
        Some(reason) => format!("{reason}: {message}"),
        None => format!("its manifest is invalid: {message}"),
    };
    let later = if was_added(folded) { "; it was admitted later" } else { "" };
    format!("{pod} {was}: {why}{later}")
}

fn rejected_page(page: &mut Page, folded: &Folded) -> Vec<String> {
    let Some(rejected) = rejected(folded) else { return Vec::new() };
    page.field("source", &rejected.source);
    if let Some(uid) = &rejected.uid {
        page.field("uid", uid);
    }
    let mut next = Vec::new();
    match rejected.reason.as_deref() {
        None => {
            next.push(String::from("correct the manifest: its last good version stays in force meanwhile"));
        }
        Some(reason) if reason.starts_with("OutOf") => {
            next.push(String::from("`enforcer allocatable` shows what may be requested, and what is free"));
        }
        Some(_) => {}
    }
    if let (Some(namespace), Some(name)) = (&rejected.namespace, &rejected.name) {
        next.push(format!("`enforcer events --pod {namespace}/{name}` shows what came then"));
    }
    next
}

fn degraded(folded: &Folded) -> Option<&Degraded> {
    let first = folded.steps.first()?.payload();
    match first {
        Payload::DegradedEntered(degraded) | Payload::DegradedLeft(degraded) => Some(degraded),
        _ => None,
    }
}

fn degradation(folded: &Folded) -> String {
    let Some(degraded) = degraded(folded) else { return String::from("Something was missing") };
    let Degraded { what, place, message, .. } = degraded;
    let place = place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
    let why = message.as_deref().unwrap_or("the reason is not recorded");
    if folded.steps.iter().all(|step| matches!(step.payload(), Payload::DegradedLeft(_))) {
        return format!("{what}{place} is whole again: {why}");
    }
    match folded.steps.get(1) {
        None => format!("{what}{place} is degraded: {why}"),
        Some(_) => format!("{what}{place} was degraded, and is whole again: {why}"),
    }
}

fn degraded_page(page: &mut Page, folded: &Folded) -> Vec<String> {
    let Some(degraded) = degraded(folded) else { return Vec::new() };
    page.field("what", &degraded.what);
    let names = degraded.name.as_ref().or(degraded.pod.as_ref());
    if let (Some(namespace), Some(name)) = (&degraded.namespace, names) {
        page.field("pod", &format!("{namespace}/{name}"));
    }
    if let Some(value) = &degraded.value {
        page.field("value", value);
    }
    for (number, threshold) in degraded.thresholds.iter().flatten().enumerate() {
        page.field(if number == 0 { "thresholds" } else { "" }, threshold);
    }
    if let Some(left) = folded.steps.get(1) {
        page.field("until", left.time());
    }
    vec![
        String::from("`enforcer doctor` shows what is lost, and what to do about it"),
        String::from("`enforcer events --type degraded.entered --type degraded.left` shows all of them"),
    ]
}

/// Where the pod stood in the decision.
enum Stand<'a> {
    /// It was left out, for that reason.
    Excluded(&'a str),
    /// It was ranked: its index among the rows.
    Ranked(usize),
    /// It is not among those that the decision names.
    NotNamed,
}

fn stand<'a>(decision: &'a Decision, pod: &str) -> Stand<'a> {
    let is_it = |namespace: &str, name: &str| pod.split_once('/') == Some((namespace, name));
    if let Some(excluded) = decision.excluded.iter().find(|one| is_it(&one.namespace, &one.name)) {
        return Stand::Excluded(&excluded.reason);
    }
    let ranked = decision.ranking.iter().position(|one| is_it(&one.namespace, &one.name));
    ranked.map_or(Stand::NotNamed, Stand::Ranked)
}

fn spared(folded: &Folded) -> String {
    let pod = folded.pod.as_deref().unwrap_or("A pod");
    let Some(decision) = folded.decision() else {
        let crossed = folded.crossing().map(|crossed| format!(" though {}", trigger(crossed)));
        let message = folded.decided.as_ref().and_then(|reported| reported.payload().message());
        let why = message.unwrap_or("the reason is not recorded");
        return format!("{pod} was not evicted{}: no pod was, as {why}", crossed.unwrap_or_default());
    };
    let short = folded.shortage().map(|shortage| format!(" though {}", trigger(&shortage)));
    let short = short.unwrap_or_default();
    let why = match stand(decision, pod) {
        Stand::Excluded(reason) => format!("it was left out of the ranking: {}", exclusion(reason)),
        Stand::Ranked(at) => {
            let rows = rows(decision);
            let (before, own) = (at.checked_sub(1).and_then(|before| rows.get(before)), rows.get(at));
            let came = before.zip(own).map(|(before, own)| {
                let key = before.decided_by.as_deref().unwrap_or_default();
                because(before, Some(own), key).replacen("it came", &format!("{} came", name(before)), 1)
            });
            let rank = own.map_or(at + 1, |own| own.rank);
            let came = came.map(|came| format!("; {came}")).unwrap_or_default();
            format!("it ranked {rank} of {}{came}", decision.ranked_count)
        }
        Stand::NotNamed => format!(
            "it is not among the {} pods that the decision names of {}",
            decision.ranking.len(),
            decision.ranked_count
        ),
    };
    format!("{pod} was not evicted{short}: {why}")
}

fn spared_page(page: &mut Page, folded: &Folded) -> Vec<String> {
    let mut next = Vec::new();
    match folded.decision() {
        Some(decision) => {
            let shortage = folded.shortage();
            screen::trigger(page, shortage.as_ref(), folded);
            if let Some(victim) = &decision.victim {
                let victim = format!("{}/{}", victim.namespace, victim.name);
                let what = match Outcome::of(folded) {
                    Outcome::Completed => "was evicted",
                    Outcome::Failed => "was to be evicted, and was not",
                    Outcome::Paused | Outcome::DryRun => "would have been evicted",
                    Outcome::Signalled | Outcome::Unknown => "was chosen",
                };
                page.field("victim", &format!("{victim} {what} instead"));
                next.push(format!("`enforcer why {}` explains that eviction", folded.id));
            }
            screen::ranking(page, decision);
        }
        None => screen::trigger(page, folded.crossing(), folded),
    }
    match (&folded.followed_by, &folded.cleared) {
        (Some(_), _) => page.field("then", "it was still short, and another pod was chosen"),
        (None, Some(_)) => page.field("then", "the shortage was over"),
        (None, None) => page.field("then", "the end of the shortage is not recorded"),
    }
    next.push(String::from("`enforcer next` shows its rank now"));
    next
}
