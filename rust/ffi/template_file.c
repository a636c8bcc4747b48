// SPDX-License-Identifier: GPL-2.0
/*
 * Which pages of a regular file a template can hold, and how.
 *
 * A page is kept *by reference* only when it is certain that nobody can write
 * it in place any more:
 *
 *  - the file is a memfd with F_SEAL_WRITE, F_SEAL_SHRINK and F_SEAL_GROW. Seals
 *    are never taken back. Sealing against writes waits for writers, is refused
 *    while a writable mapping exists or somebody holds a page beside the page
 *    cache and page tables (a pin, a pipe, a dma-buf), and from then on refuses
 *    write(), writable shared mappings, mprotect() and forced writes to shared
 *    mappings, and punching holes. Sealing against shrinking keeps a truncation
 *    from clearing the tail of a page;
 *  - the folio is in the page cache, not in the swap cache nor under writeback;
 *  - it is small: a reference to one page would keep a large folio together;
 *  - it is not poisoned;
 *  - it lies where pages may be held for long (movable.c).
 *
 * With our reference such a page stays where it is: reclaim, migration and
 * khugepaged give up on a folio with a reference that they cannot account for.
 * It leaves the page cache with the file; mm.c says when that has happened.
 *
 * No such promise exists for other files: a deny-write count stops neither the
 * writers that are there nor what a file system does by itself. Their pages are
 * read into copies.
 */
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/shmem_fs.h>
#include <linux/string.h>

#include "agentzip_ffi.h"

#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)

/*
 * The lock makes sure that sealing, with its wait for pins, is over. Hugetlb
 * memfds are not shmem: they are copied.
 */
static bool is_sealed(struct file *file)
{
	struct inode *inode = file_inode(file);
	bool sealed;

	if (!shmem_mapping(file->f_mapping))
		return false;
	inode_lock_shared(inode);
	sealed = (SHMEM_I(inode)->seals & SEALS) == SEALS;
	inode_unlock_shared(inode);
	return sealed;
}

struct file *agentzip_template_file_open(int fd, bool *sealed)
{
	struct file *file = fget(fd);
	struct file *own;

	if (!file)
		return ERR_PTR(-EBADF);
	if (!(file->f_mode & FMODE_READ)) {
		own = ERR_PTR(-EBADF);
	} else if (!S_ISREG(file_inode(file)->i_mode) ||
		   !file->f_op->read_iter || file->f_op->read ||
		   !file->f_op->llseek) {
		/* kernel_read() would warn of files such as those of procfs. */
		own = ERR_PTR(-EINVAL);
	} else {
		/* One whose position and flags are not the caller's. */
		own = dentry_open(&file->f_path, O_RDONLY | O_LARGEFILE,
				  file->f_cred);
	}
	if (!IS_ERR(own))
		*sealed = is_sealed(own);
	fput(file);
	return own;
}

void agentzip_template_file_close(struct file *file)
{
	fput(file);
}

u64 agentzip_template_file_pages(struct file *file)
{
	return DIV_ROUND_UP((u64)i_size_read(file_inode(file)), PAGE_SIZE);
}

static bool is_zero(struct page *page)
{
	return !memchr_inv(page_address(page), 0, PAGE_SIZE);
}

/*
 * A page of a sealed memfd. Returns 1 when *@out was filled, 0 for a hole, a
 * page of zeros or a poisoned one, or a negative errno.
 */
static int take_sealed(struct file *file, u64 index,
		       struct agentzip_scanned_page *out)
{
	struct folio *folio = NULL;
	struct page *page, *copy;
	bool by_reference, usable;
	int ret;

	/* Brings it back from swap; allocates nothing for a hole. */
	ret = shmem_get_folio(file_inode(file), index, 0, &folio, SGP_READ);
	if (ret || !folio)
		return ret;
	page = folio_file_page(folio, index);
	usable = !folio_contain_hwpoisoned_page(folio);
	by_reference = !folio_test_large(folio) &&
		       !folio_test_swapcache(folio) &&
		       !folio_test_writeback(folio) &&
		       agentzip_folio_may_stay(folio);
	folio_unlock(folio);

	if (!usable || is_zero(page)) {
		folio_put(folio);
		return 0;
	}
	out->index = index;
	out->copied = !by_reference;
	out->page = page;
	if (by_reference)
		return 1;

	copy = agentzip_page_copy(page);
	folio_put(folio);
	out->page = copy;
	return copy ? 1 : -ENOMEM;
}

/* A copy of a page of any other file; returns as take_sealed() does. */
static int take_copy(struct file *file, u64 index,
		     struct agentzip_scanned_page *out)
{
	struct page *page = alloc_page(GFP_KERNEL | __GFP_NOWARN);
	loff_t pos = index << PAGE_SHIFT;
	size_t done = 0;
	ssize_t ret;

	if (!page)
		return -ENOMEM;
	do {
		ret = kernel_read(file, page_address(page) + done,
				  PAGE_SIZE - done, &pos);
		if (ret > 0)
			done += ret;
	} while (ret > 0 && done < PAGE_SIZE);
	/* What is beyond the end of the file reads as zeros, as in a mapping. */
	memset(page_address(page) + done, 0, PAGE_SIZE - done);
	if (ret < 0 || is_zero(page)) {
		__free_page(page);
		return min(ret, 0);
	}
	out->index = index;
	out->copied = 1;
	out->page = page;
	return 1;
}

/* The first page from @index on that is no hole; @end when there is none. */
static s64 next_data(struct file *file, u64 index, u64 end)
{
	loff_t pos = vfs_llseek(file, index << PAGE_SHIFT, SEEK_DATA);

	if (pos == -ENXIO)
		return end;
	/* Without SEEK_DATA there are no holes. */
	if (pos == -EINVAL)
		return index;
	if (pos < 0)
		return pos;
	return min((u64)pos >> PAGE_SHIFT, end);
}

int agentzip_template_file_scan(struct file *file, bool sealed, u64 *index,
				u64 end, struct agentzip_scanned_page *out,
				unsigned int max)
{
	unsigned int n = 0;
	s64 ret = 0;

	agentzip_movable_prepare();
	while (*index < end && n < max) {
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		/* Nothing was taken: this may be a hole, however long. */
		if (!ret) {
			ret = next_data(file, *index, end);
			if (ret < 0)
				break;
			*index = ret;
			if (*index == end)
				break;
		}
		ret = sealed ? take_sealed(file, *index, &out[n]) :
			       take_copy(file, *index, &out[n]);
		if (ret < 0)
			break;
		n += ret;
		++*index;
		cond_resched();
	}
	if (ret < 0) {
		while (n)
			put_page(out[--n].page);
		return ret;
	}
	return n;
}
