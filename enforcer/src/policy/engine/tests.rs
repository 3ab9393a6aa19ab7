mod contain;
mod hostile;
mod oracle;
mod pause;
mod property;
mod rig;
mod scenario;
mod soft;
