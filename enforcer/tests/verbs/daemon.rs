//! A fake daemon with set answers.
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    sync::Arc,
    thread,
};

use crate::Scene;

/// Answers by path, without the query; what is not there is not found.
pub(crate) type Answers = BTreeMap<&'static str, Vec<u8>>;

impl Scene {
    /// Answers on both sockets until the test ends.
    pub(crate) fn answer(&self, answers: Answers) {
        let answers = Arc::new(answers);
        for socket in ["run/observe.sock", "run/admin.sock"] {
            let listener = UnixListener::bind(self.path(socket)).unwrap();
            let answers = Arc::clone(&answers);
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let answers = Arc::clone(&answers);
                    thread::spawn(move || serve(stream.unwrap(), &answers));
                }
            });
        }
    }
}

fn serve(stream: UnixStream, answers: &Answers) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(said) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = said.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    reader.read_exact(&mut vec![0; length]).unwrap();
    let target = first.split(' ').nth(1).unwrap();
    let (status, body) = match answers.get(target.split('?').next().unwrap()) {
        Some(body) => ("200 OK", body.as_slice()),
        None => ("404 Not Found", &b"{}"[..]),
    };
    let follows = target.contains("follow=true");
    let length = if follows { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    let head = format!("HTTP/1.1 {status}\r\n{length}connection: close\r\n\r\n");
    let mut stream = reader.into_inner();
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).unwrap();
    if follows {
        // Nothing comes any more, until the reader goes.
        drop(stream.read(&mut [0]));
    }
}
