mod back_off;
mod contain;
mod hostile;
mod pause;
mod property;
mod rig;
mod scenario;
mod soft;
