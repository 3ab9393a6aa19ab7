use super::*;
use crate::cli::top::model::sample;

fn shown() -> State {
    let mut state = State::new((80, 24));
    state.take(Input::Looked(Box::new(sample::look(0))));
    state
}

fn press(state: &mut State, keys: &str) -> Option<Effect> {
    let mut effect = None;
    for character in keys.chars() {
        let key = match character {
            '\n' => Key::Enter,
            '\u{1b}' => Key::Escape,
            '\u{8}' => Key::Backspace,
            other => Key::Char(other),
        };
        effect = state.take(Input::Key(key));
    }
    effect
}

/// The rows' names from top to bottom.
fn names(state: &State) -> Vec<String> {
    let picture = state.picture.as_ref().unwrap();
    let name = |row: &Row| match row.item(picture).unwrap() {
        Item::Class(class) => class.name.clone(),
        Item::Pod(pod) => pod.name.clone(),
        Item::Container(_, container) => format!(".{}", container.name),
    };
    state.rows.iter().map(name).collect()
}

fn selected(state: &State) -> String {
    names(state)[state.selected].clone()
}

#[test]
fn pods_come_by_rank_and_those_that_stay_last() {
    let long = "a-pod-with-a-rather-long-name-7d9f8b6c5-x2x4z";
    assert_eq!(
        names(&shown()),
        ["BestEffort", "batch", "Burstable", "web", "cart", long, "Guaranteed", "db", "dns"]
    );
}

#[test]
fn rows_are_folded_and_unfolded() {
    let mut state = shown();
    press(&mut state, "j\n");
    assert_eq!(names(&state)[..3], ["BestEffort", "batch", ".app"]);
    press(&mut state, "jh");
    assert_eq!(selected(&state), "batch", "from a container to its pod");
    press(&mut state, " ");
    assert_eq!(names(&state)[..3], ["BestEffort", "batch", "Burstable"]);
    press(&mut state, "h");
    assert_eq!(selected(&state), "BestEffort");
    press(&mut state, "h");
    assert_eq!(names(&state)[..2], ["BestEffort", "Burstable"]);
    press(&mut state, "l");
    assert_eq!(names(&state)[..2], ["BestEffort", "batch"]);
    // A pod without containers has nothing to unfold.
    press(&mut state, "jjjjj\n");
    assert_eq!(names(&state).len(), 9);
}

#[test]
fn the_filter_is_live_and_finds_containers_too() {
    let mut state = shown();
    press(&mut state, "/SHOP");
    assert_eq!(
        names(&state),
        ["Burstable", "cart", "a-pod-with-a-rather-long-name-7d9f8b6c5-x2x4z", "Guaranteed", "db"]
    );
    press(&mut state, "\u{8}\u{8}\u{8}\u{8}prox");
    assert_eq!(names(&state), ["Burstable", "web", ".proxy"]);
    press(&mut state, "\n");
    assert_eq!((&state.focus, state.filter.as_str()), (&Focus::Tree, "prox"));
    press(&mut state, "\u{1b}");
    assert_eq!(names(&state).len(), 9);
    press(&mut state, "/q\u{1b}");
    assert_eq!((&state.focus, state.filter.as_str()), (&Focus::Tree, ""));
    press(&mut state, &format!("/{}", "x".repeat(1_000)));
    assert_eq!((state.filter.len(), names(&state).len()), (MAX_FILTER, 0));
    // Nothing is selected, and no key minds.
    press(&mut state, "\nwejk \u{1b}");
    assert_eq!(names(&state).len(), 9);
}

#[test]
fn each_sort_is_by_its_key_and_the_selection_stays_on_its_pod() {
    let mut state = shown();
    press(&mut state, "jjj");
    assert_eq!(selected(&state), "web");
    let long = "a-pod-with-a-rather-long-name-7d9f8b6c5-x2x4z";
    let expected = [
        ("current", ["web", "cart", long]),
        ("growth", ["web", "cart", long]),
        ("% of request", ["web", "cart", long]),
        ("stall", ["web", "cart", long]),
        ("name", ["web", long, "cart"]),
        ("rank", ["web", "cart", long]),
    ];
    for (name, order) in expected {
        press(&mut state, "s");
        assert_eq!(state.sort.name(), name);
        assert_eq!(names(&state)[3..6], order.map(str::to_owned), "{name}");
        assert_eq!(selected(&state), "web", "{name}");
    }
    let guaranteed = |state: &State| names(state)[7..9].to_vec();
    assert_eq!(guaranteed(&state), ["db", "dns"]);
    press(&mut state, "ssss");
    assert_eq!(guaranteed(&state), ["dns", "db"], "by stall");
}

#[test]
fn what_is_folded_and_selected_outlives_the_next_look() {
    let mut state = shown();
    press(&mut state, "j\nj");
    state.take(Input::Looked(Box::new(sample::look(2_000))));
    assert_eq!(selected(&state), ".app");
    // The pod goes: the selection stays where it was.
    let mut look = sample::look(4_000);
    look.view.pods.remove(0);
    state.take(Input::Looked(Box::new(look)));
    assert_eq!(state.selected, 2);
    assert!(!state.folds.is_open(&Id::Pod("u1".into())), "what is gone is forgotten");
    let mut look = sample::look(6_000);
    look.view.pods.clear();
    state.take(Input::Looked(Box::new(look)));
    assert_eq!((state.selected, state.rows.len()), (0, 0));
}

#[test]
fn growth_is_reported_or_found_between_two_looks() {
    let mut state = shown();
    state.take(Input::Looked(Box::new(sample::look(2_000))));
    let picture = state.picture.as_ref().unwrap();
    let growth = |name: &str| {
        let pod = picture.pods().find(|pod| pod.name == name).unwrap();
        (pod.figures.growth_bytes_per_second, pod.containers[0].figures.growth_bytes_per_second)
    };
    assert_eq!(growth("batch"), (Some(104_857_600), Some(1 << 20)), "as the engine sees it; 2 MiB in 2 s");
    assert_eq!(growth("dns"), (Some(1 << 20), Some(0)));
}

#[test]
fn a_panel_takes_only_its_own_answer() {
    let mut state = shown();
    assert_eq!(press(&mut state, "w"), None, "a class is no pod");
    assert!(state.notice.is_some());
    let effect = press(&mut state, "jw");
    let ask = Effect::Ask { panel: 1, what: About::Why, namespace: "default".into(), name: "batch".into() };
    assert_eq!(effect, Some(ask));
    assert_eq!(state.notice, None);
    let Some(Effect::Ask { panel, what, .. }) = press(&mut state, "e") else { panic!("{:?}", state.focus) };
    assert_eq!((panel, what), (2, About::Events));
    let lines = |state: &State| match &state.focus {
        Focus::Panel(panel) => panel.lines.clone(),
        _ => None,
    };
    state.take(Input::Answered { panel: 1, lines: vec!["late".into()] });
    assert_eq!(lines(&state), None);
    state.take(Input::Answered { panel: 2, lines: vec!["one".into(), "two".into()] });
    assert_eq!(lines(&state).unwrap().len(), 2);
    press(&mut state, "jjjjjj");
    assert!(matches!(&state.focus, Focus::Panel(panel) if panel.scroll == 1), "{:?}", state.focus);
    assert_eq!(press(&mut state, "q"), None, "q goes back first");
    assert_eq!(state.focus, Focus::Tree);
    assert_eq!(press(&mut state, "q"), Some(Effect::Quit));
}

#[test]
fn control_keys_work_everywhere() {
    for focus in ["", "/ab", "?", "jw"] {
        let mut state = shown();
        press(&mut state, focus);
        assert_eq!(state.take(Input::Key(Key::Interrupt)), Some(Effect::Quit), "{focus}");
        assert_eq!(state.take(Input::Key(Key::Suspend)), Some(Effect::Suspend), "{focus}");
        assert_eq!(state.take(Input::Key(Key::Redraw)), Some(Effect::Redraw), "{focus}");
    }
}

#[test]
fn silence_is_counted_from_its_beginning_and_ends_with_an_answer() {
    let mut state = shown();
    state.take(Input::Failed { why: "gone".into(), at_ms: 3_000 });
    state.take(Input::Failed { why: "still".into(), at_ms: 5_000 });
    assert_eq!(state.stale, Some(Stale { why: "still".into(), since_ms: 3_000 }));
    assert!(state.picture.is_some(), "the last picture stays");
    state.take(Input::Looked(Box::new(sample::look(7_000))));
    assert_eq!(state.stale, None);
}

#[test]
fn only_what_no_other_source_reports_is_asked_for() {
    let mut state = State::new((80, 24));
    state.take(Input::Looked(Box::new(sample::crowd(1_000))));
    assert_eq!(state.wanted().len(), state.tree_height() - 1);
    state.take(Input::Key(Key::End));
    assert_eq!(state.selected, 1_000);
    assert!(state.wanted().contains(&String::from("uid-0999")));
    press(&mut state, "ssss");
    assert!(state.wanted().is_empty(), "who sorts by stall needs that of all");
    assert!(shown().wanted().contains(&String::from("u5")), "a critical pod is in no ranking");
}

#[test]
fn the_selection_is_always_seen() {
    let mut state = State::new((80, 24));
    state.take(Input::Looked(Box::new(sample::crowd(1_000))));
    let is_seen =
        |state: &State| (state.offset..state.offset + state.tree_height().max(1)).contains(&state.selected);
    for (step, key) in [Key::PageDown, Key::PageDown, Key::Up, Key::End, Key::PageUp, Key::Home, Key::Down]
        .into_iter()
        .cycle()
        .take(200)
        .enumerate()
    {
        state.take(Input::Key(key));
        assert!(is_seen(&state), "{key:?}");
        let height = u16::try_from(step * 7 % 60).unwrap();
        state.take(Input::Resized(80, height));
        assert!(is_seen(&state), "height {height}");
    }
}
