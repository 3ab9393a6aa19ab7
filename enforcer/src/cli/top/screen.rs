//! The terminal: taken for the view, and always restored.

use std::{
    io::{self, Stdout, Write as _},
    panic,
    sync::Once,
};

use ratatui::{
    Frame, Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor::{Hide, Show},
        event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
        execute,
        terminal::{
            BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
            LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
        },
    },
};

use super::model::{Input, Key};

static ON_PANIC: Once = Once::new();

/// The terminal while the view has it.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    /// Whether the screen is to be cleared before the next picture.
    must_clear: bool,
}

impl Screen {
    /// Takes the terminal: raw mode, alternate screen, no cursor.
    pub(super) fn take() -> io::Result<Self> {
        ON_PANIC.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                give_back();
                before(panic);
            }));
        });
        enter()?;
        match Terminal::new(CrosstermBackend::new(io::stdout())) {
            Ok(terminal) => Ok(Self { terminal, must_clear: false }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    /// Takes the terminal again after another process had it.
    pub(super) fn retake(&mut self) -> io::Result<()> {
        enter()?;
        self.draw_anew()
    }

    /// The next picture is drawn whole, on a cleared screen.
    pub(super) fn draw_anew(&mut self) -> io::Result<()> {
        // `Terminal::clear` queries the cursor position, and the reply may be read as keys.
        self.terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        self.must_clear = true;
        Ok(())
    }

    /// Draws what has changed. A terminal that knows synchronised output shows it at once: over a slow line, half a picture
    /// flickers.
    pub(super) fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        execute!(io::stdout(), BeginSynchronizedUpdate)?;
        if std::mem::take(&mut self.must_clear) {
            execute!(io::stdout(), Clear(ClearType::All))?;
        }
        let drawn = self.terminal.draw(picture).map(|_frame| ());
        // Also after a failure: the terminal shows nothing until then.
        execute!(io::stdout(), EndSynchronizedUpdate).and(drawn)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    let entered = execute!(io::stdout(), EnterAlternateScreen, Hide);
    if entered.is_err() {
        give_back();
    }
    entered
}

/// Restores the terminal. May be called repeatedly.
pub(super) fn give_back() {
    // Do each of them even if one fails: nothing else can be done at exit.
    drop(execute!(io::stdout(), EndSynchronizedUpdate, LeaveAlternateScreen, Show));
    drop(disable_raw_mode());
    drop(io::stdout().flush());
}

/// Translates an event of the terminal; `None` if it has no meaning.
pub(super) fn input(event: &Event) -> Option<Input> {
    match event {
        Event::Resize(columns, rows) => Some(Input::Resized(*columns, *rows)),
        Event::Key(KeyEvent {
            code, modifiers, kind: KeyEventKind::Press | KeyEventKind::Repeat, ..
        }) => key(*code, *modifiers).map(Input::Key),
        _ => None,
    }
}

fn key(code: KeyCode, modifiers: KeyModifiers) -> Option<Key> {
    if modifiers.contains(KeyModifiers::CONTROL) {
        return match code {
            KeyCode::Char('c') => Some(Key::Interrupt),
            KeyCode::Char('z') => Some(Key::Suspend),
            KeyCode::Char('l') => Some(Key::Redraw),
            _ => None,
        };
    }
    Some(match code {
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Char(character) => Key::Char(character),
        _ => return None,
    })
}
