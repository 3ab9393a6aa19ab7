use ratatui::{Terminal, backend::TestBackend};

use super::*;
use crate::cli::top::{
    model::{Input, Key, sample},
    tally::{Problem, Tally},
};

const COLOR: Theme = Theme { color: true };

fn state(columns: u16, rows: u16) -> State {
    let mut state = State::new((columns, rows));
    state.take(Input::Looked(Box::new(sample::look(0))));
    let degraded = vec![Problem { what: "btf".into(), message: "no type information\u{1b}[2J".into() }];
    let mut tally = Tally::default();
    (tally.evicted, tally.only_decided, tally.oom_incidents, tally.degraded) = (3, 2, 1, degraded);
    state.take(Input::Tallied(tally));
    for key in [Key::Down, Key::Down, Key::Down, Key::Enter] {
        state.take(Input::Key(key));
    }
    state
}

fn buffer(state: &State, theme: Theme) -> Buffer {
    let (columns, rows) = state.size;
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(state, theme, frame)).unwrap();
    terminal.backend().buffer().clone()
}

/// The screen's text, without what is empty at the end of its lines.
fn text(state: &State) -> String {
    let buffer = buffer(state, COLOR);
    let line =
        |row: &[ratatui::buffer::Cell]| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>();
    let lines: Vec<_> = buffer
        .content()
        .chunks(usize::from(buffer.area.width).max(1))
        .map(|row| line(row).trim_end().to_owned())
        .collect();
    lines.join("\n")
}

#[test]
fn eighty_by_twenty_four() {
    insta::assert_snapshot!(text(&state(80, 24)));
}

#[test]
fn a_large_screen_has_every_column() {
    insta::assert_snapshot!(text(&state(120, 40)));
}

#[test]
fn twenty_by_five() {
    insta::assert_snapshot!(text(&state(20, 5)));
}

#[test]
fn help_and_panels() {
    let mut state = state(80, 24);
    state.take(Input::Key(Key::Char('?')));
    insta::assert_snapshot!("help", text(&state));
    state.take(Input::Key(Key::Escape));
    state.take(Input::Key(Key::Char('w')));
    insta::assert_snapshot!("asking", text(&state));
    let long = format!("12:00:00.123  oom.incident  {}\u{1b}[31m", "word ".repeat(40));
    state.take(Input::Answered { panel: 1, lines: vec![long, String::from("short")] });
    insta::assert_snapshot!("panel", text(&state));
}

#[test]
fn silence_is_said_and_the_last_picture_is_grey() {
    let mut state = state(80, 24);
    state.take(Input::Failed { why: "cannot reach the daemon\u{1b}[2J".into(), at_ms: 1_000 });
    state.take(Input::Tick(13_000));
    insta::assert_snapshot!(text(&state));
    let cells = buffer(&state, COLOR);
    let above = cells.content().iter().take(80 * 23);
    assert!(above.into_iter().all(|cell| cell.fg == Color::DarkGray && cell.modifier == Modifier::DIM));
}

/// The cells that are not plain, as `modifiers text`.
fn styles(buffer: &Buffer) -> Vec<String> {
    let mut reported: Vec<String> = Vec::new();
    let mut last = Modifier::empty();
    for cell in buffer.content() {
        if cell.modifier.is_empty() {
            last = Modifier::empty();
            continue;
        }
        if cell.modifier != last {
            reported.push(format!("{:?}: ", cell.modifier));
            last = cell.modifier;
        }
        if let Some(reported) = reported.last_mut() {
            reported.push_str(cell.symbol());
        }
    }
    reported.into_iter().map(|reported| reported.trim_end().to_owned()).collect()
}

#[test]
fn without_colour_what_matters_still_stands_out() {
    let mut state = state(80, 24);
    let colorless = |state: &State| {
        let cells = buffer(state, Theme { color: false });
        assert!(cells.content().iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
        cells
    };
    insta::assert_snapshot!(styles(&colorless(&state)).join("\n"));
    let colored = buffer(&state, COLOR);
    assert!(colored.content().iter().any(|cell| cell.fg == Color::Red));
    state.take(Input::Failed { why: "gone".into(), at_ms: 0 });
    colorless(&state);
}

#[test]
fn names_from_outside_reach_no_terminal() {
    let mut look = sample::look(0);
    look.view.pods[0].name = "a\u{1b}[2J\u{202e}b".into();
    look.view.pods[0].containers[0].name = "c\nd\u{7}".into();
    look.view.mode = "\u{1b}c".into();
    look.ranking = Err("\u{1b}]0;title\u{7}".into());
    let mut state = State::new((200, 50)).unfolded();
    state.take(Input::Looked(Box::new(look)));
    for character in "/\u{9b}".chars() {
        state.take(Input::Key(Key::Char(character)));
    }
    let filtered = text(&state);
    state.take(Input::Key(Key::Escape));
    let shown = text(&state) + &filtered;
    assert!(
        !shown.replace('\n', "").chars().any(|character| character.is_control() || character == '\u{202e}')
    );
    assert!(shown.contains(r"default/a\u{1b}[2J\u{202e}b") && shown.contains(r"c\nd\u{7}"), "{shown}");
    assert!(shown.contains(r"\u{1b}]0;title") && shown.contains(r"\u{9b}"), "{shown}");
}

#[test]
fn any_size_is_drawn() {
    for columns in [0, 1, 2, 7, 8, 19, 20, 40, 79, 300] {
        for rows in [0, 1, 2, 3, 5, 6, 7, 8, 13, 14, 60] {
            for keys in ["", "?", "w", "/x"] {
                let mut state = state(columns, rows);
                for character in keys.chars() {
                    state.take(Input::Key(Key::Char(character)));
                }
                let cells = buffer(&state, COLOR);
                assert_eq!(cells.content().len(), usize::from(columns) * usize::from(rows));
            }
        }
    }
    // A screen that has become smaller than what the state knows of.
    let state = state(120, 40);
    let mut terminal = Terminal::new(TestBackend::new(3, 2)).unwrap();
    terminal.draw(|frame| draw(&state, COLOR, frame)).unwrap();
}

#[test]
fn a_thousand_pods_cost_no_more_than_the_screen_shows() {
    // The best of some rounds, as other tests run beside.
    let cost = |pods: usize| {
        let mut state = State::new((80, 24));
        state.take(Input::Looked(Box::new(sample::crowd(pods))));
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let mut round = || {
            let begin = std::time::Instant::now();
            for key in [Key::PageDown, Key::Down, Key::Up, Key::PageUp] {
                state.take(Input::Key(key));
                terminal.draw(|frame| draw(&state, COLOR, frame)).unwrap();
            }
            begin.elapsed()
        };
        (0..10).map(|_| round()).min().unwrap()
    };
    let (few, many) = (cost(40), cost(1_000));
    assert!(many < few * 5, "{few:?} for 40, {many:?} for 1,000");
}
