/* SPDX-License-Identifier: GPL-2.0 */
/*
 * ftrace handlers that mark pages dirty when they are unpinned (pins.c), for
 * hooks.c: of unpin_user_page() and unpin_user_folio(). Any context.
 */
#ifndef AGENTZIP_PINS_H
#define AGENTZIP_PINS_H

struct ftrace_ops;
struct ftrace_regs;

void agentzip_unpin_page_handler(unsigned long ip, unsigned long parent_ip,
				 struct ftrace_ops *ops,
				 struct ftrace_regs *fregs);
void agentzip_unpin_folio_handler(unsigned long ip, unsigned long parent_ip,
				  struct ftrace_ops *ops,
				  struct ftrace_regs *fregs);

#endif /* AGENTZIP_PINS_H */
