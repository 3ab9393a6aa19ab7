//! The report's page in a real Chromium without a screen.
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    Scene,
    journal::{eviction, oom},
};

/// Names the browser, if it is not on the path.
const CHROMIUM: &str = "ENFORCER_CHROMIUM";

fn browser() -> Option<PathBuf> {
    let on_path = || {
        let path = env::var_os("PATH")?;
        env::split_paths(&path).map(|folder| folder.join("chromium")).find(|program| program.is_file())
    };
    env::var_os(CHROMIUM).map(PathBuf::from).or_else(on_path)
}

/// What the browser prints, and what it says on stderr, with a page and options of its own.
fn show(browser: &Path, page: &Path, options: &[&str]) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    // A browser that hangs fails the test, and does not hold up the others for ever.
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=10", "180"])
        .arg(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        // In a container it may be small.
        .arg("--disable-dev-shm-usage")
        .args(["--enable-logging=stderr", "--log-level=0", "--window-size=1200,900"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(options)
        .arg(format!("file://{}", page.display()));
    let output = command.output().unwrap();
    let [out, said] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}: {said}", output.status);
    (out, said)
}

#[test]
fn chromium_shows_the_page_of_a_report_without_a_complaint_in_both_schemes_and_prints_it() {
    let Some(browser) = browser() else {
        eprintln!("NOT RUN: the page of a report: no chromium is on the path, and {CHROMIUM} names none");
        return;
    };
    let scene = Scene::new();
    scene.remember(&[eviction(), oom()].concat());
    let page = scene.path("report.html");
    fs::write(&page, scene.raw(&["-o", "html", "report"]).out).unwrap();

    let (shown, said) = show(&browser, &page, &["--dump-dom"]);
    assert!(shown.contains("default/hog: evicted (memory)"), "{shown}");
    // What the page's own policy forbids, or the browser does not understand.
    let complaints: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert_eq!(complaints, [""; 0]);

    let pictures = ["light", "dark"].map(|scheme| {
        let picture = scene.path(&format!("{scheme}.png"));
        // 0 is dark (`blink::mojom::PreferredColorScheme`).
        let preferred = u8::from(scheme == "light");
        show(
            &browser,
            &page,
            &[
                &format!("--blink-settings=preferredColorScheme={preferred}"),
                &format!("--screenshot={}", picture.display()),
            ],
        );
        fs::read(picture).unwrap()
    });
    assert!(pictures.iter().all(|picture| picture.starts_with(b"\x89PNG")));
    assert_ne!(pictures[0], pictures[1], "the schemes look alike");

    let printed = scene.path("report.pdf");
    show(&browser, &page, &[&format!("--print-to-pdf={}", printed.display())]);
    assert!(fs::read(printed).unwrap().starts_with(b"%PDF"));
}
