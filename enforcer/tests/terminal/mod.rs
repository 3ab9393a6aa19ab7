//! A program in a terminal of its own, and what a person sees there.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Terminal {
    controller: File,
    device: OwnedFd,
    parser: Arc<Mutex<vt100::Parser>>,
    pub(crate) raw: Arc<Mutex<Vec<u8>>>,
    before: Termios,
    pub(crate) program: Child,
}

impl Terminal {
    /// Starts a program, as `configure` has it, in a session of its own whose terminal of that many columns and rows it is.
    pub(crate) fn start(program: &str, size: (u16, u16), configure: impl FnOnce(&mut Command)) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let device =
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        resize(&device, size);
        let before = tcgetattr(&device).unwrap();
        let stdio = || Stdio::from(device.try_clone().unwrap());
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program).env("TERM", "xterm-256color").env_remove("NO_COLOR");
        configure(&mut command);
        let program = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        let parser = Arc::new(Mutex::new(vt100::Parser::new(size.1, size.0, 100)));
        let raw = Arc::<Mutex<Vec<u8>>>::default();
        let (shown, kept) = (Arc::clone(&parser), Arc::clone(&raw));
        let controller = File::from(controller);
        let mut reader = controller.try_clone().unwrap();
        thread::spawn(move || {
            let mut chunk = [0; 4_096];
            while let Ok(count @ 1..) = reader.read(&mut chunk) {
                shown.lock().unwrap().process(&chunk[..count]);
                kept.lock().unwrap().extend_from_slice(&chunk[..count]);
            }
        });
        Self { controller, device, parser, raw, before, program }
    }

    pub(crate) fn screen(&self) -> vt100::Screen {
        self.parser.lock().unwrap().screen().clone()
    }

    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&vt100::Screen) -> bool) {
        assert!(self.shows(is_so), "not so: {what}\n{}", self.screen().contents());
    }

    /// Whether its screen is so before long.
    pub(crate) fn shows(&self, is_so: impl Fn(&vt100::Screen) -> bool) -> bool {
        let start = Instant::now();
        while !is_so(&self.screen()) {
            if start.elapsed() > TIMEOUT {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        true
    }

    pub(crate) fn until_shown(&self, text: &str) {
        self.until(text, |screen| screen.contents().contains(text));
    }

    pub(crate) fn until_not_shown(&self, text: &str) {
        self.until(&format!("without {text}"), |screen| !screen.contents().contains(text));
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.controller.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.program), signal).unwrap();
    }

    /// Gives it that many columns and rows.
    pub(crate) fn resize(&self, (columns, rows): (u16, u16)) {
        self.parser.lock().unwrap().screen_mut().set_size(rows, columns);
        resize(&self.device, (columns, rows));
    }

    /// Whether the terminal is as it was before the program.
    pub(crate) fn is_given_back(&self) -> bool {
        let screen = self.screen();
        let now = tcgetattr(&self.device).unwrap();
        let modes = |of: &Termios| (of.input_modes, of.output_modes, of.control_modes, of.local_modes);
        !screen.alternate_screen() && !screen.hide_cursor() && modes(&now) == modes(&self.before)
    }

    pub(crate) fn end(&mut self) -> ExitStatus {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.program.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < TIMEOUT, "it does not end\n{}", self.screen().contents());
            thread::sleep(Duration::from_millis(10));
        };
        self.until("the terminal is as it was", |_| self.is_given_back());
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.program.kill());
        drop(self.program.wait());
    }
}

fn resize(device: &OwnedFd, (columns, rows): (u16, u16)) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(device.as_fd(), size).unwrap();
}
