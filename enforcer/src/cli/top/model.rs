//! The live view as a pure state machine: state and input give the next state and an effect.

use super::{
    picture::{Look, Picture},
    rows::{Folds, Id, Item, Row, Sort, rows},
    tally::Tally,
};
use crate::serve::Memories;

/// The longest filter.
const MAX_FILTER: usize = 64;

/// How many invisible pods without a rank are requested: the ranking does not contain their usage.
const MAX_UNSEEN: usize = 100;

/// A key with a meaning.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
    Enter,
    Escape,
    Backspace,
    Char(char),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L.
    Redraw,
}

/// An input to the state machine.
#[derive(Debug)]
pub(super) enum Input {
    Key(Key),
    /// Columns and rows.
    Resized(u16, u16),
    /// The daemon answered.
    Looked(Box<Look>),
    /// The memory of newly visible pods.
    Filled(Memories),
    /// The daemon did not answer.
    Failed {
        why: String,
        at_ms: u64,
    },
    /// The tally of the events since the start of the stream.
    Tallied(Tally),
    /// The text that a panel was waiting for.
    Answered {
        panel: u64,
        lines: Vec<String>,
    },
    /// Time passes.
    Tick(u64),
}

/// An action outside the state machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Effect {
    Quit,
    Suspend,
    Redraw,
    /// Fetch a panel's text about a pod.
    Ask {
        panel: u64,
        what: About,
        namespace: String,
        name: String,
    },
}

/// What a panel shows about a pod.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum About {
    Why,
    Events,
}

/// A text over the tree.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Panel {
    /// Identifies the panel that an answer is for: a late one belongs to an earlier panel.
    number: u64,
    pub(super) title: String,
    /// `None` until the answer arrives.
    pub(super) lines: Option<Vec<String>>,
    /// How many lines are scrolled out above the screen.
    pub(super) scroll: usize,
}

/// The part that receives the keys.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) enum Focus {
    #[default]
    Tree,
    /// The filter is being edited.
    Filter,
    Help {
        scroll: usize,
    },
    Panel(Panel),
}

/// Since when, and why, the picture is out of date.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Stale {
    pub(super) why: String,
    pub(super) since_ms: u64,
}

/// The state of the view.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) picture: Option<Picture>,
    pub(super) tally: Tally,
    pub(super) stale: Option<Stale>,
    pub(super) rows: Vec<Row>,
    /// The index of the selected row.
    pub(super) selected: usize,
    /// The index of the first visible row.
    pub(super) offset: usize,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) focus: Focus,
    /// A message on the last line, until the next key.
    pub(super) notice: Option<&'static str>,
    pub(super) now_ms: u64,
    pub(super) size: (u16, u16),
    selected_id: Option<Id>,
    folds: Folds,
    panels: u64,
}

impl State {
    /// An empty state for a screen of that many columns and rows.
    pub(super) fn new(size: (u16, u16)) -> Self {
        Self {
            picture: None,
            tally: Tally::default(),
            stale: None,
            rows: Vec::new(),
            selected: 0,
            offset: 0,
            sort: Sort::default(),
            filter: String::new(),
            focus: Focus::default(),
            notice: None,
            now_ms: 0,
            size,
            selected_id: None,
            folds: Folds::default(),
            panels: 0,
        }
    }

    /// Sorted by that, with only names that contain `filter`.
    pub(super) fn arranged_by(mut self, sort: Sort, filter: &str) -> Self {
        self.sort = sort;
        self.filter = filter.chars().take(MAX_FILTER).collect();
        self
    }

    /// With all pods unfolded.
    pub(super) fn unfolded(mut self) -> Self {
        self.folds.all = true;
        self
    }

    /// Applies an input.
    pub(super) fn take(&mut self, input: Input) -> Option<Effect> {
        let effect = match input {
            Input::Key(key) => {
                self.notice = None;
                self.key(key)
            }
            Input::Resized(columns, rows) => {
                self.size = (columns, rows);
                None
            }
            Input::Looked(look) => {
                self.now_ms = self.now_ms.max(look.at_ms);
                let picture = Picture::new(&look, self.picture.as_ref());
                self.folds.keep(&picture);
                self.picture = Some(picture);
                self.stale = None;
                self.arrange();
                None
            }
            Input::Filled(memories) => {
                if let Some(picture) = &mut self.picture {
                    picture.fill_in(&memories);
                }
                None
            }
            Input::Failed { why, at_ms } => {
                self.now_ms = self.now_ms.max(at_ms);
                let since_ms = self.stale.as_ref().map_or(at_ms, |stale| stale.since_ms);
                self.stale = Some(Stale { why, since_ms });
                None
            }
            Input::Tallied(tally) => {
                self.tally = tally;
                None
            }
            Input::Answered { panel, lines } => {
                if let Focus::Panel(open) = &mut self.focus
                    && open.number == panel
                {
                    open.lines = Some(lines);
                }
                None
            }
            Input::Tick(now_ms) => {
                self.now_ms = self.now_ms.max(now_ms);
                None
            }
        };
        self.follow();
        effect
    }

    /// The uids whose memory is to be read: the visible pods, and pods without a rank. Empty means all.
    pub(super) fn wanted(&self) -> Vec<String> {
        let Some(picture) = &self.picture else { return Vec::new() };
        if self.sort == Sort::Stall || self.folds.all {
            return Vec::new();
        }
        let seen = self.rows.iter().skip(self.offset).take(self.tree_height());
        let mut uids: Vec<_> =
            seen.filter_map(|row| row.item(picture)?.pod().map(|pod| pod.uid.clone())).collect();
        let unseen = picture.pods().filter(|pod| pod.rank.is_none()).map(|pod| pod.uid.clone());
        uids.extend(unseen.take(MAX_UNSEEN));
        uids.sort_unstable();
        uids.dedup();
        uids
    }

    /// The selected item.
    pub(super) fn selected_item(&self) -> Option<Item<'_>> {
        self.rows.get(self.selected)?.item(self.picture.as_ref()?)
    }

    /// How many rows of the tree fit.
    pub(super) fn tree_height(&self) -> usize {
        super::draw::Areas::of(self).tree_height()
    }

    /// Whether a row is unfolded; `None` if it has no rows below it.
    pub(super) fn is_open(&self, item: &Item<'_>) -> Option<bool> {
        match item {
            Item::Pod(pod) if pod.containers.is_empty() => None,
            Item::Container(..) => None,
            Item::Class(_) | Item::Pod(_) => Some(self.folds.is_open(&item.id())),
        }
    }

    /// Sorts the rows again. The selection stays on its item, or else on its row number.
    fn arrange(&mut self) {
        let Some(picture) = &self.picture else { return };
        self.rows = rows(picture, &self.folds, self.sort, &self.filter);
        let is_selected =
            |row: &Row| row.item(picture).is_some_and(|item| Some(item.id()) == self.selected_id);
        if let Some(at) = self.rows.iter().position(is_selected) {
            self.selected = at;
        }
    }

    /// Keeps the selection and the offset within the rows.
    fn follow(&mut self) {
        self.selected = self.selected.min(self.rows.len().saturating_sub(1));
        self.selected_id = self.selected_item().map(|item| item.id());
        let height = self.tree_height().max(1);
        self.offset = self.offset.min(self.rows.len().saturating_sub(height));
        if self.selected < self.offset {
            self.offset = self.selected;
        }
        if self.selected >= self.offset + height {
            self.offset = self.selected + 1 - height;
        }
    }

    fn select(&mut self, row: usize) {
        self.selected = row.min(self.rows.len().saturating_sub(1));
        self.selected_id = self.selected_item().map(|item| item.id());
    }

    fn key(&mut self, key: Key) -> Option<Effect> {
        match key {
            Key::Interrupt => return Some(Effect::Quit),
            Key::Suspend => return Some(Effect::Suspend),
            Key::Redraw => return Some(Effect::Redraw),
            _ => {}
        }
        let height = self.tree_height();
        match &mut self.focus {
            Focus::Tree => return self.tree_key(key),
            Focus::Filter => self.filter_key(key),
            Focus::Help { scroll } => {
                if scrolled(scroll, key, height) {
                    *scroll = (*scroll).min(super::draw::HELP.len() - 1);
                } else {
                    self.focus = Focus::Tree;
                }
            }
            Focus::Panel(panel) => {
                let most = panel.lines.as_ref().map_or(0, |lines| lines.len().saturating_sub(1));
                let again = matches!(key, Key::Char('w' | 'e'));
                if scrolled(&mut panel.scroll, key, height) {
                    panel.scroll = panel.scroll.min(most);
                } else {
                    self.focus = Focus::Tree;
                    if again {
                        return self.tree_key(key);
                    }
                }
            }
        }
        None
    }

    fn filter_key(&mut self, key: Key) {
        match key {
            Key::Escape => {
                self.filter.clear();
                self.focus = Focus::Tree;
            }
            Key::Enter => self.focus = Focus::Tree,
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(character) if self.filter.chars().count() < MAX_FILTER => self.filter.push(character),
            Key::Up | Key::Down | Key::PageUp | Key::PageDown => self.walk(key),
            _ => return,
        }
        self.arrange();
    }

    fn walk(&mut self, key: Key) {
        let page = self.tree_height().max(1);
        let last = self.rows.len().saturating_sub(1);
        self.select(match key {
            Key::Up => self.selected.saturating_sub(1),
            Key::Down => self.selected + 1,
            Key::PageUp => self.selected.saturating_sub(page),
            Key::PageDown => self.selected + page,
            Key::Home => 0,
            _ => last,
        });
    }

    fn tree_key(&mut self, key: Key) -> Option<Effect> {
        match key {
            Key::Char('q') => return Some(Effect::Quit),
            Key::Up | Key::Down | Key::PageUp | Key::PageDown | Key::Home | Key::End => self.walk(key),
            Key::Char('k') => self.walk(Key::Up),
            Key::Char('j') => self.walk(Key::Down),
            Key::Char('g') => self.walk(Key::Home),
            Key::Char('G') => self.walk(Key::End),
            Key::Enter | Key::Char(' ') => self.fold(None),
            Key::Right | Key::Char('l') => self.fold(Some(true)),
            Key::Left | Key::Char('h') => self.fold(Some(false)),
            Key::Char('/') => self.focus = Focus::Filter,
            Key::Escape => {
                self.filter.clear();
                self.arrange();
            }
            Key::Char('s') => {
                self.sort = self.sort.next();
                self.arrange();
            }
            Key::Char('?') => self.focus = Focus::Help { scroll: 0 },
            Key::Char('w') => return self.ask(About::Why),
            Key::Char('e') => return self.ask(About::Events),
            _ => {}
        }
        None
    }

    /// Folds or unfolds the selected item; `None` toggles. Folding a folded item selects its parent.
    fn fold(&mut self, open: Option<bool>) {
        let Some(item) = self.selected_item() else { return };
        let (id, is_open) = (item.id(), self.is_open(&item));
        let open = open.unwrap_or(is_open == Some(false));
        if !open && is_open != Some(true) {
            let above = |row: &Row| match (row, self.rows.get(self.selected)) {
                (Row::Class(class), Some(Row::Pod(of, _))) => class == of,
                (Row::Pod(class, pod), Some(Row::Container(of, in_pod, _))) => (class, pod) == (of, in_pod),
                _ => false,
            };
            if let Some(at) = self.rows.iter().position(above) {
                self.select(at);
            }
            return;
        }
        if is_open.is_some() {
            self.folds.set(&id, open);
            self.arrange();
        }
    }

    fn ask(&mut self, what: About) -> Option<Effect> {
        let pod = self
            .selected_item()
            .and_then(|item| item.pod().map(|pod| (pod.namespace.clone(), pod.name.clone())));
        let Some((namespace, name)) = pod else {
            self.notice = Some("select a pod first");
            return None;
        };
        self.panels += 1;
        let title = match what {
            About::Why => format!("why {namespace}/{name}"),
            About::Events => format!("events of {namespace}/{name}"),
        };
        self.focus = Focus::Panel(Panel { number: self.panels, title, lines: None, scroll: 0 });
        Some(Effect::Ask { panel: self.panels, what, namespace, name })
    }
}

/// Scrolls, if the key scrolls; returns whether it does.
fn scrolled(scroll: &mut usize, key: Key, height: usize) -> bool {
    let page = height.max(1);
    *scroll = match key {
        Key::Up | Key::Char('k') => scroll.saturating_sub(1),
        Key::Down | Key::Char('j') => *scroll + 1,
        Key::PageUp => scroll.saturating_sub(page),
        Key::PageDown | Key::Char(' ') => *scroll + page,
        Key::Home | Key::Char('g') => 0,
        _ => return false,
    };
    true
}

#[cfg(test)]
pub(super) mod sample;
#[cfg(test)]
mod tests;
