//! The real program with third-party clients.

mod activity;
mod clients;
mod curl;
mod execute;
mod files;
mod first_command;
mod first_process;
mod hostile;
mod python;
mod races;
mod rest;
mod served;
mod web;
